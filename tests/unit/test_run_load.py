"""A real training, brought back as a live model by `Run.load`: right, and refused where it should be."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sshd import start_sshd

import fsdl_dev
from fsdl_dev.core.errors import FsdlError
from fsdl_dev.core.job import Job
from fsdl_dev.core.rundir import RunDir, create_run_dir, write_json
from fsdl_dev.core.settings import find_project
from fsdl_dev.records.run import Run
from fsdl_dev.snapshot.take import take_snapshot

NET = """
import torch
from pytorch_lightning import LightningModule

class Net(LightningModule):
    monitor = ("val_loss", "min")
    def __init__(self, width: int = 4):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(width, 1)
    def training_step(self, batch, index):
        loss = (self.layer(batch[0]) ** 2).mean()
        self.log("train_loss", loss)
        return loss
    def validation_step(self, batch, index):
        self.log("val_loss", (self.layer(batch[0]) ** 2).mean())
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
"""
TRAIN = """
import torch, fsdl_dev
from torch.utils.data import DataLoader, TensorDataset
from loadable.net import Net
data = DataLoader(TensorDataset(torch.randn(32, 4, generator=torch.Generator().manual_seed(0))), batch_size=8)
fsdl_dev.Trainer(max_epochs=3, enable_progress_bar=False, accelerator="cpu", devices=1).fit(Net(), data, data)
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, RunDir]:
    "A project with one module, and the directory of a run that trained it."
    root = tmp_path_factory.mktemp("proj") / "a projéct"
    (root / "loadable").mkdir(parents=True)
    (root / "settings.ini").write_text(
        "[DEFAULT]\nlib_name = loadable\nlib_path = loadable\nnbs_path = nbs\n"
    )
    (root / "loadable" / "__init__.py").write_text("")
    (root / "loadable" / "net.py").write_text(NET)
    project = find_project(root)
    snapshot = take_snapshot(project)
    made = create_run_dir(snapshot.store, Job("script", "train.py"))
    write_json(made.snapshot_file, {"digest": snapshot.digest})
    worker = made.writer("worker")
    for state in ("queued", "starting", "running"):
        made.set_state(worker, state, "test")
    environment = {
        **os.environ,
        "FSDL_RUN_DIR": str(made.path),
        "FSDL_RUN_ID": made.id,
        "PYTHONPATH": str(root),
    }
    done = subprocess.run(
        [sys.executable, "-c", TRAIN], env=environment, capture_output=True, text=True, cwd=root, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    made.set_state(worker, "succeeded", "exit code 0")
    return root, made


def test_best_and_last_come_back_as_the_own_class(trained, monkeypatch, capsys):
    root, made = trained
    monkeypatch.syspath_prepend(str(root))
    run = Run(made)
    model = run.load("best")
    said = capsys.readouterr().out
    assert type(model).__module__ == "loadable.net" and not model.training
    assert "val_loss" in said and "B" in said and "changed" not in said
    assert run.best.value == pytest.approx(float(run.metrics.val_loss.min()), rel=1e-3)
    assert run.load("last").hparams.width == 4 and run.load(run.last.step)
    assert run.snapshot.files["loadable/net.py"]


def test_changed_code_is_said(trained, monkeypatch, capsys):
    root, made = trained
    monkeypatch.syspath_prepend(str(root))
    (root / "loadable" / "net.py").write_text(NET + "\n# another thought\n")
    try:
        Run(made).load("best")
        assert "loadable.net has changed since this run" in capsys.readouterr().out
    finally:
        (root / "loadable" / "net.py").write_text(NET)


def test_what_is_not_ours_is_refused(trained, monkeypatch):
    root, made = trained
    monkeypatch.syspath_prepend(str(root))
    run = Run(made)
    best = run.best.path
    content = best.read_bytes()
    best.chmod(0o644)  # of an ended run it is read-only
    try:
        best.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(FsdlError, match="not what the run saved"):
            run.load("best")
        best.write_bytes(content[:100])
        with pytest.raises(FsdlError, match="100 bytes"):
            run.load("best")
    finally:
        best.write_bytes(content)
    (made.path / "stray.ckpt").write_bytes(content)
    with pytest.raises(FsdlError, match="did not record it as a checkpoint"):
        run.load("stray.ckpt")


# --- the same, of a model that was trained elsewhere
# -------------------------------------------------------------------

ELSEWHERE = """
import fsdl_dev
from faraway.digits import Digits
trainer = fsdl_dev.Trainer(max_steps=12, val_check_interval=4, enable_progress_bar=False, accelerator="cpu", devices=1)
trainer.fit(Digits(width=8), fsdl_dev.DigitsData(batch_size=32, image_size=8))
"""
DIGITS = """
import torch
from pytorch_lightning import LightningModule


class Digits(LightningModule):
    monitor = ("val_loss", "min")

    def __init__(self, width: int = 4):
        super().__init__()
        self.save_hyperparameters()
        self.layers = torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 10)
        )

    def forward(self, images):
        return self.layers(images)

    def loss(self, batch):
        return torch.nn.functional.cross_entropy(self(batch[0]), batch[1])

    def training_step(self, batch, index):
        loss = self.loss(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)
"""


@pytest.mark.tier("long")
@pytest.mark.slow
def test_a_model_that_was_trained_behind_an_sshd(tmp_path, monkeypatch, capsys):
    """Digits, for a few steps, with a storage of its own on the remote machine: the checkpoint comes when it is
    asked for, and predicts as it did there.
    """
    server, root = start_sshd(tmp_path / "sshd"), tmp_path / "a projéct"
    monkeypatch.setenv("FSDL_SSH_CONFIG", str(server.config))
    (root / "faraway").mkdir(parents=True)
    (root / "faraway" / "__init__.py").write_text("")
    (root / "faraway" / "digits.py").write_text(DIGITS)
    (root / "train.py").write_text(ELSEWHERE)
    (root / "pyproject.toml").write_text(
        f'[tool.fsdl_dev.targets.box]\nkind = "ssh"\nhost = "{server.host}"\nstorage ='
        f' "{tmp_path}/far"\npython = "{sys.executable}"\n'
    )
    subprocess.run(
        "git init -q && git add -A && git -c user.name=a -c user.email=a@example.com commit -qm a",
        shell=True,
        cwd=root,
        check=True,
    )
    try:
        run = fsdl_dev.launch("train.py", on="box", gpus=0, folder=root, say=None)
        assert run.wait(600, progress=False).state == "succeeded", run.logs()
        assert (
            run.best.metric == "val_loss" and run.best.sha256 and not run.best.exists
        )  # only the events have come by themselves
        monkeypatch.syspath_prepend(str(root))
        model = run.load("best")
        assert (
            "val_loss" in capsys.readouterr().out
            and run.best.exists
            and run.best.path.is_relative_to(run.path)
        )
        assert type(model).__module__ == "faraway.digits" and model.hparams.width == 8 and not model.training
        data = fsdl_dev.DigitsData(image_size=8).parts["validation"]
        assert model.loss(data.tensors).item() == pytest.approx(run.best.value, rel=1e-4)  # as it was there
        there = tmp_path / "far" / "runs" / run.id / run.best.path.relative_to(run.path)
        there.unlink()
        assert run.load("best").hparams.width == 8  # it is here now
        run.best.path.unlink()
        run.best.path.write_bytes(b"cut")
        with pytest.raises(FsdlError):
            run.load("best")
    finally:
        server.stop()
