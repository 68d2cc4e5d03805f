"""A training whose ranks are killed at random moments, again and again, ends where the one that nobody touched
does, to the last bit.

`pytest tests/training/test_random_kills.py` kills three times; with KILLS=20 and
`-s` twenty times, and prints how long each took.
"""

import os
import random
import subprocess
import sys
import time

import pytest
import torch
from following import events, until
from killing import kill, log, none_left, project, start, step_of  # noqa: F401  a fixture

KILLS = int(os.environ.get("KILLS", 3))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200 + 120 * KILLS),
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]
STEPS, SECONDS, EVERY = 25 * (KILLS + 1), 0.05, 4
ENDS = """\
import os, sys
import pytorch_lightning as pl, torch
from torch.utils.data import TensorDataset
from fsdl_dev.data.loaders import make_loader
from fsdl_dev.train.checkpoints.one_file import RunCheckpoint
from fsdl_dev.train.trainer import Trainer

class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(8, 1)
    def training_step(self, batch, index):
        loss = (self.layer(batch[0]) - batch[1]).square().mean()
        print("step", self.global_step, self.trainer.current_epoch, batch[0].sum().item(), loss.item(), flush=True)
        return loss
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-2)

class Die(pl.Callback):
    def on_train_epoch_end(self, trainer, module):
        if trainer.global_step == int(sys.argv[1]):
            os._exit(0)

torch.manual_seed(0)
x = torch.randn(128, 8)
torch.manual_seed(100)
callbacks = [Die(), RunCheckpoint(every_n_train_steps=4)]
Trainer(max_steps=32, accelerator="cpu", enable_model_summary=False, callbacks=callbacks).fit(
    Net(), make_loader(TensorDataset(x, x.sum(1, keepdim=True)), 16, name="train", train=True))
"""


@pytest.mark.tier("long")
def test_random_kills_change_nothing(make_project, tmp_path):
    root = project(make_project, tmp_path / "project")
    whole = start(root, STEPS, 0, 1000)
    whole.wait(timeout=600, progress=False)
    assert whole.state == "succeeded", log(whole)

    chance, run = (
        random.Random(os.environ.get("SEED", 7)),
        start(root, STEPS, SECONDS, EVERY, f"lingers {STEPS - 20}", max_restarts=KILLS),
    )
    took = []
    for number in range(KILLS):
        early = chance.random() < 0.25  # before its first step; else in the training
        since = restarts[-1]["t"] if (restarts := events(run, "restart")) else 0.0
        fresh = lambda since=since: [event for event in events(run, "progress") if event["t"] > since]  # noqa: E731
        pid_files = [run.path / f"pid{rank}" for rank in (0, 1)]
        until(
            lambda: all(file.exists() and file.stat().st_mtime > since for file in pid_files),
            lambda: log(run),
        )
        if not early or not number:
            until(lambda: len({event["step"] for event in fresh()}) > 1, lambda: log(run), pause=0.01)
        time.sleep(chance.random() * (0.3 if early else 1.0))
        if run.state != "running":
            break
        moment, rank, step = time.time(), chance.randrange(2), step_of(run)
        kill(run, rank)
        restart = until(
            lambda number=number: events(run, "restart")[number:] or run.state != "running",
            lambda: log(run),
            pause=0.01,
        )
        assert isinstance(restart, list) and f"rank {rank} was ended by SIGKILL" in restart[0]["reason"], log(
            run
        )
        until(
            lambda: any(event["t"] > restart[0]["t"] for event in events(run, "progress")),
            lambda: log(run),
            pause=0.01,
        )
        back = min(event["t"] for event in events(run, "progress") if event["t"] > restart[0]["t"])
        took.append(back - moment)
        print(
            f"kill {number + 1}: rank {rank} at step {step}{' as it began' if early else ''}; from step"
            f" {restart[0]['from_step']} {took[-1]:.1f} s later",
            flush=True,
        )
    (run.path / "enough").touch()
    run.wait(timeout=600, progress=False)
    assert run.state == "succeeded" and len(events(run, "restart")) == KILLS == len(took), log(run)
    print(f"{KILLS} kills, {KILLS} resumes, median {sorted(took)[len(took) // 2]:.1f} s")
    one, other = (torch.load(each.path / "weights.pt") for each in (whole, run))
    assert all(torch.equal(one[name], other[name]) for name in one), {
        name: float((one[name] - other[name]).abs().max()) for name in one
    }
    losses = [
        {
            event["step"]: event["values"]["train_loss"]
            for event in events(each, "metric")
            if "train_loss" in event["values"]
        }
        for each in (whole, run)
    ]
    assert losses[0][STEPS] == losses[1][STEPS]


@pytest.mark.tier("long")
def test_stopped_at_the_ends_of_two_epochs(tmp_path):
    """Lightning does not count an epoch that begins after a checkpoint of the last batch of the one before;
    the next resume then reads the wrong epoch's data.
    """
    script = tmp_path / "job.py"
    script.write_text(ENDS)

    def lives(*stops: int) -> list[str]:
        said: list[str] = []
        folder = tmp_path / "-".join(map(str, stops))
        (folder / "checkpoints").mkdir(parents=True)
        for number, stop in enumerate(stops):
            environment = {
                **os.environ,
                "FSDL_RUN_DIR": str(folder),
                "TORCHELASTIC_RESTART_COUNT": str(number),
            }
            done = subprocess.run(
                [sys.executable, str(script), str(stop)],
                env=environment,
                capture_output=True,
                text=True,
                timeout=600,
            )
            assert done.returncode == 0, done.stderr[-3000:]
            said += [line for line in done.stdout.splitlines() if line.startswith("step")]
        return said

    assert lives(8, 16, 24) == lives(24)
