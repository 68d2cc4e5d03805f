"""A training in two processes that may be killed: the job, a launch of it, and what it left."""

import os
import signal
from pathlib import Path

import pytest
from conftest import commit_all
from following import events, until

from fsdl_dev.api import launch

JOB = """\
import json, os, sys, time
import pytorch_lightning as pl, torch
from torch.utils.data import DataLoader, TensorDataset
from fsdl_dev.data.loaders import make_loader
from fsdl_dev.train.checkpoints.one_file import RunCheckpoint
from fsdl_dev.train.trainer import Trainer

STEPS, SECONDS, EVERY, MODE = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), (sys.argv + [""])[4]
rank, attempt = int(os.environ.get("RANK", 0)), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")

class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        nn = torch.nn
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 1))
    def training_step(self, batch, index):
        time.sleep(SECONDS)
        trouble(self, index)
        loss = (self.layers(batch[0]) - batch[1]).square().mean()
        self.log("train_loss", loss, sync_dist=True)
        return loss
    def validation_step(self, batch, index):
        open(os.path.join(os.environ["FSDL_RUN_DIR"], f"validated{rank}"), "a").write("x")
        time.sleep(float(os.environ.get("SLOW_VALIDATION", 0)))
        self.log("val_loss", (self.layers(batch[0]) - batch[1]).square().mean(), sync_dist=True)
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-2)

def trouble(module, index):
    "What goes wrong, by the mode."
    if MODE.startswith("lingers") and module.global_step >= int(MODE.split()[1]):
        # Steps of three seconds until the test has seen enough: it need not be quick, and the ranks stop together.
        for _ in range(30):
            seen = torch.tensor(float(os.path.exists(os.path.join(os.environ["FSDL_RUN_DIR"], "enough"))))
            torch.distributed.all_reduce(seen)
            if seen:
                break
            time.sleep(0.1)
    if attempt == "0" and module.global_step == 6 and rank == 1:
        if MODE == "sleeps":
            time.sleep(1000)  # the straggler
        if MODE == "stopped":
            os.kill(os.getpid(), 19)
    if MODE == "skips" and attempt == "0" and module.global_step == 6 and rank == 0:
        torch.distributed.barrier()  # rank 1 skips it
    if MODE == "bug" and module.global_step == 6 and rank == 1:
        raise ValueError("a bug in rank one")

open(os.path.join(os.environ["FSDL_RUN_DIR"], f"pid{rank}"), "w").write(str(os.getpid()))
torch.manual_seed(0)
x = torch.randn(256, 8); y = x.sum(1, keepdim=True).sin()
torch.manual_seed(100 + rank)
saves = RunCheckpoint(every_n_train_steps=EVERY)
quiet = {"accelerator": "cpu", "enable_model_summary": False, "log_every_n_steps": 1}
trainer = Trainer(max_steps=STEPS, callbacks=[saves], **quiet)
validation = DataLoader(TensorDataset(x, y), 1) if os.environ.get("SLOW_VALIDATION") else None
trainer.fit(Net(), make_loader(TensorDataset(x, y), 16, name="train", train=True), validation)
print("finished at", trainer.global_step, flush=True)
if rank == 0:
    torch.save(dict(trainer.lightning_module.state_dict()), os.path.join(os.environ["FSDL_RUN_DIR"], "weights.pt"))
"""


def project(make_project, folder: Path) -> Path:
    """A project with the job in it."""
    root = make_project(nbdev=0, notebooks={}, folder=folder, git=False)
    (root / "train.py").write_text(JOB)
    commit_all(root)
    return root


_started: list = []


@pytest.fixture(autouse=True)
def none_left(monkeypatch):
    """Each rank computes in one thread, and no run outlives its test."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield
    while _started:
        run = _started.pop()
        if run.view.alive:
            run.cancel()
            run.wait(timeout=240, progress=False)


def start(root: Path, *arguments, procs: int = 2, **more):
    """Launch the job on this machine."""
    _started.append(
        launch(
            "train.py",
            args=list(map(str, arguments)),
            procs=procs,
            gpus=0,
            on="local",
            folder=root,
            say=None,
            **more,
        )
    )
    return _started[-1]


def log(run) -> str:
    """Everything that the run's processes said, for a test that failed."""
    return "\n".join(
        f"--- {path.name}\n{path.read_text()[-4000:]}" for path in sorted(run.dir.logs.glob("*"))
    )


def step_of(run, rank: int = 0) -> int:
    """The newest step that a rank has told; -1 before the first."""
    told = [event["step"] for event in events(run, "progress") if event["rank"] == rank]
    return told[-1] if told else -1


def pid_of(run, rank: int) -> int | None:
    """The process of a rank, once it has come as far as its model; None before."""
    file = run.path / f"pid{rank}"
    return int(file.read_text() or 0) or None if file.exists() else None


def kill(run, rank: int, number: int = signal.SIGKILL) -> int:
    """Send a signal to a rank; its process."""
    pid = until(lambda: pid_of(run, rank), lambda: log(run))
    os.kill(pid, number)
    return pid
