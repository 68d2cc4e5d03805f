"""Checkpoints of other frameworks: a script that says what it saved goes on from there, by --resume and by itself."""

import os

import pytest

import fsdl_dev

SCRIPT = """
import json, os, signal, sys
from pathlib import Path

import fsdl_dev

saved, folder = os.environ.get("FSDL_RESUME"), Path(os.environ["FSDL_RUN_DIR"], "checkpoints")
rank, kind, last = int(os.environ.get("RANK", 0)), sys.argv[1], int(sys.argv[2])
file = Path(saved, "state.json") if saved and kind == "folder" else Path(saved or ".")
done = json.loads(file.read_text())["step"] if saved else 0
print("from", done, flush=True)
for step in range(done + 1, last + 1):
    if step % 10 == 0 and rank == 0:
        path = folder / (f"step{step}" if kind == "folder" else f"step{step}.json")
        path.mkdir(parents=True) if kind == "folder" else folder.mkdir(exist_ok=True)
        (path / "state.json" if kind == "folder" else path).write_text(json.dumps({"step": step}))
        fsdl_dev.log_checkpoint(path, step, val_loss=1 / step)
    fsdl_dev.log(step, total=last, loss=1 / step)
    if not saved and step == 25 and len(sys.argv) > 3:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "study"\nversion = "0.1"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_resumes_from_what_the_script_saved(project, kind):
    first = fsdl_dev.launch("train.py", args=[kind, "20"], wait=True, say=None)
    assert first.state == "succeeded", first.logs()
    assert [one.step for one in first.checkpoints] == [10, 20] and first.best.step == 20
    assert first.best.metric == "val_loss" and first.best.best
    again = fsdl_dev.launch("train.py", args=[kind, "40"], resume=first.words, wait=True, say=None)
    assert again.state == "succeeded" and "from 20" in again.logs(), again.logs()
    earlier = fsdl_dev.launch("train.py", args=[kind, "30"], resume=f"{first.words}@10", wait=True, say=None)
    assert "from 10" in earlier.logs() and earlier.metrics.step.tolist() == list(range(11, 31))
    damaged = first.checkpoints[-1].path / "state.json" if kind == "folder" else first.checkpoints[-1].path
    damaged.write_text('{"step": 90}')
    os.utime(damaged, (0, 0))  # not saved again under its name, which would count
    third = fsdl_dev.launch("train.py", args=[kind, "30"], resume=first.words, wait=True, say=None)
    assert "from 90" not in third.logs()  # what changed since it was announced is not gone on from


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_goes_on_by_itself_after_a_kill(project, kind, monkeypatch):
    monkeypatch.setenv("FSDL_SLOTS", "2")
    run = fsdl_dev.launch("train.py", args=[kind, "40", "killed"], procs=2, wait=True, say=None)
    assert run.state == "succeeded", run.logs()
    assert "from 0" in run.logs() and "from 20" in run.logs() and run.metrics.step.max() == 40


def test_the_epochs_of_transformers_have_parts(project):
    "trainer_state.json has 0.5 for half an epoch: the table has it, and whole numbers elsewhere."
    (project / "train.py").write_text(
        "print({'loss': 0.5, 'epoch': 0.5})\nprint({'loss': 0.25, 'epoch': 1.0})\n"
    )
    run = fsdl_dev.launch("train.py", wait=True, say=None)
    assert run.metrics.epoch.tolist() == [0.5, 1.0]
