"""Gates: interrupting a test ends what it started, refusals are readable, this repository passes its own scan."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from fsdl_dev.checks import tests as gates
from fsdl_dev.checks.fields import fill_tags
from fsdl_dev.checks.secrets import secrets_gate
from fsdl_dev.core.settings import Project, find_project

ROOT = Path(__file__).parent.parent
TOKEN = "hf_" + "aB3dE6gH9k" * 4
SETTINGS = ("[DEFAULT]\nlib_name = demo\nlib_path = demo\nnbs_path = nbs\ndoc_path = _docs\nversion = 0.1\nuser = u\n"
            "repo = r\nbranch = main\nauthor = a\ndescription = d\ntst_flags = slow\n")  # fmt: skip


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "init.defaultBranch=main")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def write_notebook(path: Path, *sources: str, outputs: tuple = ()) -> None:
    cells = [{"cell_type": "code", "id": f"c{number}", "metadata": {}, "source": source, "outputs": list(outputs),
        "execution_count": None}
             for number, source in enumerate(sources)]  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))


@pytest.fixture
def root(tmp_path) -> Path:
    root = tmp_path / "größe lernen"
    root.mkdir()
    (root / "settings.ini").write_text(SETTINGS)
    git(root, "init")
    git(root, "add", ".")
    git(root, "commit", "-m", "first")
    return root


def test_this_repository_passes_its_own_scan():
    checks = secrets_gate(find_project(ROOT))
    assert [check.verdict for check in checks] == ["pass"], "\n".join(check.text() for check in checks)


def test_secrets_are_named_and_never_shown(root):
    stream = {"output_type": "stream", "name": "stdout", "text": [f"logged in with {TOKEN}\n"]}
    error = {
        "output_type": "error",
        "ename": "E",
        "evalue": "x",
        "traceback": [f"\x1b[31mhttps://ada:{'p4ss' + 'w0rd9'}@example.org\x1b[0m"],
    }
    write_notebook(
        root / "nbs" / "00_login.ipynb", "def login():\n    pass", "login()", outputs=(stream, error)
    )
    (root / ".env").write_text("WANDB_API_" + "KEY=" + "0123456789abcdef" * 2 + "01234567\n")
    (root / "conf.yaml").write_text('db:\n  password: "' + "tr0ub4dor" + '&3"\n')
    checks = secrets_gate(find_project(root))
    text = "\n".join(check.text() for check in checks)
    print(text)
    places = {check.where.split(",")[0] for check in checks}
    assert places == {"nbs/00_login.ipynb", ".env", "conf.yaml"} and all(check.failed for check in checks)
    assert "saved output" in text and "cell 2" in text
    for secret in (TOKEN, "p4ss" + "w0rd9", "tr0ub4dor", "0123456789abcdef"):
        assert secret not in text


def test_interrupted_test_leaves_no_process(root):
    """Ctrl-C while a notebook's tests run ends them with everything they started."""
    child = root / "child.pid"
    write_notebook(root / "nbs" / "00_core.ipynb", "#| default_exp core",
                   "import subprocess, sys, time\n"
                   "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3000)'])\n"
                   f"open({str(child)!r}, 'w').write(str(p.pid))\ntime.sleep(3000)")  # fmt: skip
    program = ("import sys; from fsdl_dev.checks import tests as gates\n"
               "from fsdl_dev.core.settings import find_project\n"
               "gates.test_gate(find_project(sys.argv[1]), progress=print)")  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + 240
    while not (child.exists() and child.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    try:
        said = process.communicate(timeout=240)[0]
    finally:
        process.kill()
    assert "KeyboardInterrupt" in said
    deadline = time.monotonic() + 120
    while psutil.pid_exists(int(child.read_text())) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (
        not psutil.pid_exists(int(child.read_text()))
        or psutil.Process(int(child.read_text())).status() == psutil.STATUS_ZOMBIE
    )


def test_unchanged_notebooks_start_no_process(root, monkeypatch):
    write_notebook(root / "nbs" / "00_core.ipynb", "#| default_exp core", "assert True")
    project = find_project(root)
    assert [check.verdict for check in gates.test_gate(project, "nbs/00_core.ipynb")] == ["pass"]
    monkeypatch.setattr(sys, "executable", "/nowhere")
    assert gates.test_gate(project, "nbs/00_core.ipynb")[0].message.startswith("no notebook has changed")
    write_notebook(root / "nbs" / "00_core.ipynb", "#| default_exp core", "assert True, 'changed'")
    assert list(gates.changed_notebooks(project, None)) == ["nbs/00_core.ipynb"]
    git(root, "add", ".")
    git(root, "commit", "-m", "second")
    assert gates.changed_notebooks(project, None) == {}


def test_several_changed_notebooks_each_have_a_verdict(root):
    write_notebook(root / "nbs" / "00_a.ipynb", "#| default_exp a", "assert True")
    write_notebook(root / "nbs" / "01_b.ipynb", "#| default_exp b", "x = 1\n\nx.nothing")
    write_notebook(root / "nbs" / "02_c.ipynb", "#| default_exp c", "import os\nos.kill(os.getpid(), 9)")
    checks = {check.where.split(",")[0]: check for check in gates.test_gate(find_project(root))}
    print(*(check.text() for check in checks.values()), sep="\n")
    assert [checks[f"nbs/{name}.ipynb"].verdict for name in ("00_a", "01_b", "02_c")] == [
        "pass",
        "fail",
        "fail",
    ]
    assert (
        checks["nbs/01_b.ipynb"].where.endswith("line 3")
        and "AttributeError" in checks["nbs/01_b.ipynb"].message
    )
    assert "exit code -9" in checks["nbs/02_c.ipynb"].message


def test_tests_do_not_see_this_process(root):
    """A module that only this process imported is not there, and IN_TEST does not leak out."""
    sys.modules["only_here"] = sys
    try:
        write_notebook(root / "nbs" / "00_a.ipynb", "#| default_exp a", "import only_here")
        assert "ModuleNotFoundError" in gates.test_gate(find_project(root))[0].message
    finally:
        del sys.modules["only_here"]
    assert "IN_TEST" not in os.environ


def test_owner_without_git_identity(root, monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("LOGNAME", "grace")
    assert fill_tags(Project(root, "demo"), {}) == {"owner": "grace", "status": "exploring"}
