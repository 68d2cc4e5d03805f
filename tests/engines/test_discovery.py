"""A run that was launched at one desk is found at another: another clone of the project, the same storage
behind a real sshd.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from following import PATIENCE, until

import fsdl_dev
from fsdl_dev.core.errors import FsdlError

FSDL = [sys.executable, "-c", "import sys; from fsdl_dev.cli.main import main; sys.argv[0] = 'fsdl'; main()"]
WAIT = (
    'import pathlib, sys, time\nprint("begun", flush=True)\nwhile not pathlib.Path(sys.argv[1]).exists():'
    ' time.sleep(0.05)\nprint("the end")\n'
)


@pytest.fixture
def desks(own_sshd, tmp_path, monkeypatch):
    """Two clones of a project that name the same target: (the one, the other)."""
    monkeypatch.delenv("FSDL_STORE")
    found = []
    for place in ("office", "train"):
        folder = tmp_path / place / "prøject"
        folder.mkdir(parents=True)
        (folder / "wait.py").write_text(WAIT)
        (folder / "pyproject.toml").write_text(own_sshd.target(tmp_path / "far"))
        found.append(folder)
    return found


def fsdl(folder: Path, *words: str, code: int = 0) -> subprocess.CompletedProcess:
    done = subprocess.run(
        [*FSDL, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "COLUMNS": "120"},
    )
    assert done.returncode == code, f"fsdl {' '.join(words)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.mark.slow
def test_found_at_another_desk(desks, tmp_path):
    """By its words, by a look at the target, in a kernel; and from then on it is a run like any other:
    followed, stopped, fetched.
    """
    office, train = desks
    run = fsdl_dev.launch(
        "wait.py", args=[str(tmp_path / "go on")], on="lab", gpus=0, folder=office, say=None
    )
    until(lambda: run.view.state == "running" or not run.view.alive, "it did not start")
    assert run.state == "running"

    # the other desk knows nothing, and is told by its target
    assert "No runs fit" in fsdl(train, "runs").stdout
    assert run.words in fsdl(train, "runs", "--on", "lab").stdout
    there = fsdl_dev.load_run(run.words, train)
    assert (
        there.id == run.id
        and there.state == "running"
        and there.elsewhere
        and there.path.is_relative_to(train)
    )
    until(lambda: "begun" in (there.place.bring_log() or "".join(there.tail())), "its log did not come")

    # stopped there, it is stopped here
    said = fsdl(train, "cancel", run.words)
    assert "cancelled" in said.stderr
    until(lambda: not run.view.alive, "the first desk was not told")
    assert run.state == there.state == "cancelled"


@pytest.mark.slow
def test_found_by_its_words_alone(desks, tmp_path):
    """`fsdl attach WORDS` needs no other command first; a name that nobody has is still no run."""
    office, train = desks
    (tmp_path / "go on").touch()
    run = fsdl_dev.launch(
        "wait.py", args=[str(tmp_path / "go on")], on="lab", gpus=0, folder=office, say=None
    ).wait(timeout=PATIENCE, progress=False)
    assert run.state == "succeeded"
    followed = fsdl(train, "attach", run.words)
    assert (
        f"{run.words} was found on lab" in followed.stderr
        and "the end" in followed.stdout
        and "succeeded" in followed.stderr
    )
    assert "No run is called 'no-such-run'" in fsdl(train, "show", "no-such-run", code=4).stderr
    with pytest.raises(FsdlError, match="No run is called"):
        fsdl_dev.load_run("no-such-run", train)


KERNEL = """
import os, sys, threading, time
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
heard = []
shell.display_pub.publish = lambda data, metadata=None, transient=None, update=False, **rest: heard.append(
    (update, data.get("text/plain", ""))
)
shell.kernel = object()
shell.run_line_magic("load_ext", "fsdl_dev")
print("loaded", sum(len(open(name).readlines()) for name in [sys.argv[1]] if os.path.exists(name)))
open(sys.argv[1] + ".go", "w").close()
end = time.monotonic() + 240
while time.monotonic() < end and not any(update for update, _ in heard):
    time.sleep(0.05)
print([text for update, text in heard if update])
"""


@pytest.mark.slow
def test_loading_finds_runs_and_waits_for_nobody(desks, tmp_path):
    """`%load_ext` has spoken before a single ssh has ended; what is found appears beneath."""
    office, train = desks
    run = fsdl_dev.launch(
        "wait.py", args=[str(tmp_path / "go on")], on="lab", gpus=0, folder=office, say=None
    )
    until(lambda: run.view.state == "running" or not run.view.alive, "it did not start")
    slow = tmp_path / "bin"
    slow.mkdir()
    real = subprocess.run(["sh", "-c", "command -v ssh"], capture_output=True, text=True).stdout.strip()
    (slow / "ssh").write_text(
        f'#!/bin/sh\nn=0; while [ ! -e "{tmp_path}/ssh.log.go" ] && [ $n -lt 600 ]; do sleep 0.1; n=$((n +'
        f' 1)); done\necho ended >> "{tmp_path}/ssh.log"\nexec {real} "$@"\n'
    )
    (slow / "ssh").chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", KERNEL, str(tmp_path / "ssh.log")],
        cwd=train,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "PATH": f"{slow}:{os.environ['PATH']}", "IPYTHONDIR": str(tmp_path / "ipython")},
    )
    assert done.returncode == 0, done.stderr
    assert "runs go to 'local'" in done.stdout and "loaded 0" in done.stdout, done.stdout
    assert f"{run.words} is running on lab:  %fsdl_attach {run.words}" in done.stdout, (
        done.stdout + done.stderr
    )
    (tmp_path / "go on").touch()
    run.wait(timeout=PATIENCE, progress=False)
