"""What nobody asked for, seen through the front door: launches in the same instant, a killed worker, torn
files, a full disk.
"""

import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import commit_all

from fsdl_dev.api import launch, load_run
from fsdl_dev.core.rundir import list_run_ids

PATIENCE = 300  # seconds; a test that needs more has failed
FSDL = [sys.executable, "-c", "import sys; from fsdl_dev.cli.main import main; sys.argv[0] = 'fsdl'; main()"]
LONG = "import time\nfor tick in range(100000):\n    print('tick', tick, flush=True)\n    time.sleep(0.05)\n"


@pytest.fixture
def project(make_project, tmp_path):
    root = make_project(nbdev=0, notebooks={}, folder=tmp_path / "mon projet é", git=False)
    (root / "hello.py").write_text("import sys\nprint('hello', *sys.argv[1:])\n")
    (root / "long.py").write_text(LONG)
    commit_all(root)
    return root


def fsdl(root: Path, *words: str, code: int = 0) -> str:
    done = subprocess.run([*FSDL, *words], cwd=root, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == code and "Traceback" not in done.stderr, (
        f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    )
    return done.stdout + done.stderr


def test_launches_in_the_same_instant(project):
    "Sixteen threads and four processes: as many names, and every run has its own output."
    others = [
        subprocess.Popen(
            [*FSDL, "launch", "hello.py", "--on", "test", "-d", "--", f"process{n}"],
            cwd=project,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(4)
    ]
    with ThreadPoolExecutor(16) as pool:
        runs = list(
            pool.map(
                lambda n: launch("hello.py", args=[f"thread{n}"], on="test", folder=project, say=None),
                range(16),
            )
        )
    names = [run.id for run in runs] + [
        process.communicate(timeout=PATIENCE)[0].strip() for process in others
    ]
    assert len(set(names)) == 20 == len(list_run_ids(Path(os.environ["FSDL_STORE"])))
    for name, word in zip(
        names, [f"thread{n}" for n in range(16)] + [f"process{n}" for n in range(4)], strict=True
    ):
        run = load_run(name, project).wait(timeout=PATIENCE, progress=False)
        assert (run.state, run.logs().strip()) == ("succeeded", f"hello {word}")
    assert len({run.snapshot.digest for run in runs}) == 1


def test_a_killed_worker_and_torn_files(project):
    run = launch("long.py", on="test", folder=project, say=None)
    while not run.dir.log(0).exists() or "tick 2" not in run.logs():
        assert run.view.alive
    os.kill(json.loads((run.path / "worker.json").read_text())["pid"], signal.SIGKILL)
    said = fsdl(project, "show", "--exit-code", code=1)
    assert f"{run.words} lost: the worker was killed; no checkpoint had been saved" in " ".join(
        said.split()
    ) and re.search(r"tick \d", said)
    assert "lost" in fsdl(project, "runs") and "ended already: lost" in fsdl(project, "cancel")
    assert "left no checkpoint" in fsdl(project, "launch", "--resume", run.words, "--on", "test", code=2)
    with open(run.path / "events" / "rank0.jsonl", "a") as log:
        log.write('{"t": 1, "kind": "met')
    assert json.loads(fsdl(project, "show", "--json"))["state"] == "lost"
    (run.path / "job.json").write_text('{"torn')
    assert "job.json is not readable" in fsdl(project, "show", run.words, code=2) and run.words in fsdl(
        project, "runs"
    )


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounts a small disk")
def test_a_disk_without_a_byte_left(project, tmp_path, monkeypatch):
    "A launch onto it refuses, or its run ends; nobody waits for ever for a word that cannot be written."
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(small)], capture_output=True
    ).returncode:
        pytest.skip("FULL DISK NOT TRIED: mounting is not allowed here")
    try:
        monkeypatch.setenv("FSDL_STORE", str(small / "store"))
        fsdl(project, "launch", "hello.py", "--on", "test")
        for left in (80_000, 30_000, 8_000, 0):
            free = os.statvfs(small).f_bavail * 4096
            (small / f"fill{left}").write_bytes(b"x" * max(0, free - left))
            done = subprocess.run(
                [*FSDL, "launch", "hello.py", "--on", "test"],
                cwd=project,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
            )
            said = done.stdout + done.stderr
            assert "Traceback" not in done.stderr.partition("── log")[0], said
            assert done.returncode == 0 or "space" in said or "df -h" in said, said
        assert done.returncode != 0
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)
