"""Training in several processes: events of all ranks, checkpoints, SIGTERM, resume, and the same losses as one
process.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from fsdl_dev.core.events import read_events

JOB = """
import sys, time
import pytorch_lightning as pl, torch
from fsdl_dev.data.digits import DigitsData
from fsdl_dev.train.trainer import Trainer
from fsdl_dev.train.vision import ImageClassifier

class Slow(pl.Callback):
    def on_train_batch_end(self, *ignored):
        time.sleep(float(sys.argv[2]))

pl.seed_everything(0, verbose=False)
module = ImageClassifier("test_resnet", model_settings={"in_chans": 1}, lr=3e-3)
trainer = Trainer(max_epochs=int(sys.argv[1]), enable_model_summary=False, accelerator="cpu", callbacks=[Slow()])
trainer.fit(module, DigitsData(batch_size=64, image_size=16))
print("finished at", trainer.global_step, flush=True)
"""

PARITY = """
import os, sys
import pytorch_lightning as pl, torch
from fsdl_dev.train.trainer import Trainer
from torch.utils.data import DataLoader, TensorDataset


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))

    def training_step(self, batch, index):
        loss = (self.layers(batch[0]) - batch[1]).square().mean()
        self.log("train_loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


torch.manual_seed(0)
x = torch.randn(64, 8)
y = x.sum(1, keepdim=True).sin()
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
share = torch.cat([batch.chunk(world)[rank] for batch in torch.arange(64).split(16)])
trainer = Trainer(
    max_epochs=3,
    enable_model_summary=False,
    accelerator="cpu",
    use_distributed_sampler=False,
    log_every_n_steps=1,
)
trainer.fit(Net(), DataLoader(TensorDataset(x[share], y[share]), 16 // world))
"""


def start(folder: Path, script: str, arguments: list, procs: int, **environment: str) -> subprocess.Popen:
    """The job as the worker would start it: a run directory in the environment, torchrun for several
    processes.
    """
    run_dir = folder / "run"
    run_dir.mkdir(parents=True)
    (folder / "job.py").write_text(script)
    launcher = (
        [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={procs}"]
        if procs > 1
        else [sys.executable]
    )
    env = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("FSDL_", "TORCHELASTIC")) and k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    }
    env |= {"FSDL_RUN_DIR": str(run_dir), "OMP_NUM_THREADS": "1", **environment}
    with open(folder / "output.txt", "w") as output:
        return subprocess.Popen(
            [*launcher, str(folder / "job.py"), *map(str, arguments)],
            env=env,
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def finish(job: subprocess.Popen, folder: Path, timeout: float = 400) -> int:
    "Wait for a job that the test started; end it if it does not."
    try:
        return job.wait(timeout)
    except subprocess.TimeoutExpired:
        job.kill()
        job.wait()
        pytest.fail(f"the job hung:\n{(folder / 'output.txt').read_text()[-3000:]}")


def events(folder: Path, kind: str) -> list[dict]:
    return [event for event in read_events(folder / "run" / "events") if event["kind"] == kind]


def wait_for_step(job: subprocess.Popen, folder: Path, step: int) -> None:
    deadline = time.monotonic() + 300
    while not any(event["step"] >= step for event in events(folder, "progress")):
        assert job.poll() is None, (folder / "output.txt").read_text()[-3000:]
        assert time.monotonic() < deadline, "training did not start"
        time.sleep(0.1)


@pytest.mark.tier("long")
@pytest.mark.slow
@pytest.mark.parametrize("procs", [1, 2])
def test_sigterm_saves_and_a_resume_continues(tmp_path, procs):
    first, second = tmp_path / "first", tmp_path / "second"
    job = start(first, JOB, [500, 0.05], procs)
    wait_for_step(job, first, 3)
    job.send_signal(signal.SIGTERM)
    status = finish(job, first)
    output = (first / "output.txt").read_text()
    assert status == (143 if procs == 1 else 1), output[
        -3000:
    ]  # torchrun's own status for a stopped job is 1
    assert "finished" not in output
    last = first / "run" / "checkpoints" / "last.ckpt"
    saved = torch.load(last, weights_only=True)["global_step"]
    announced = events(first, "checkpoint")[-1]
    assert (announced["path"], announced["step"], announced["bytes"]) == (
        "checkpoints/last.ckpt",
        saved,
        last.stat().st_size,
    )
    assert saved >= 3 and {event["rank"] for event in read_events(first / "run" / "events")} == set(
        range(procs)
    )

    epochs = saved // (19 if procs == 1 else 9) + 1
    job = start(second, JOB, [epochs, 0], procs, FSDL_RESUME=str(last))
    assert finish(job, second) == 0, (second / "output.txt").read_text()[-3000:]
    steps = [event["step"] for event in events(second, "progress") if event["rank"] == 0]
    assert steps[0] == saved and steps == sorted(steps) and steps[-1] > saved
    best = [event for event in events(second, "checkpoint") if event["best"]]
    assert (
        best
        and best[-1]["metric"] == "val_accuracy"
        and best[-1]["cls"] == "fsdl_dev.train.vision:ImageClassifier"
    )
    assert {event["rank"] for event in events(second, "checkpoint")} == {0}, "one process writes the files"


@pytest.mark.tier("long")
@pytest.mark.slow
def test_two_processes_have_the_losses_of_one(tmp_path):
    losses = {}
    for procs in (1, 2):
        folder = tmp_path / str(procs)
        assert finish(start(folder, PARITY, [], procs), folder) == 0, (folder / "output.txt").read_text()[
            -3000:
        ]
        losses[procs] = [(event["step"], event["values"]["train_loss"]) for event in events(folder, "metric")]
    assert [step for step, _ in losses[1]] == list(range(1, 13)) == [step for step, _ in losses[2]]
    assert all(abs(one - two) < 1e-5 for (_, one), (_, two) in zip(losses[1], losses[2]))
    assert sum(loss for _, loss in losses[1][8:]) < sum(loss for _, loss in losses[1][:4]), (
        "the last epoch is better than the first"
    )


@pytest.mark.tier("long")
@pytest.mark.slow
def test_an_error_in_one_of_two_processes_does_not_hang(tmp_path):
    script = JOB.replace(
        "time.sleep(float(sys.argv[2]))", "\n        if self.seen(): raise RuntimeError('a bug in rank one')"
    ).replace(
        "class Slow(pl.Callback):",
        "class Slow(pl.Callback):\n    def seen(self):\n        import os; self.count = getattr(self,"
        " 'count', 0) + 1\n        return self.count == 4 and os.environ['RANK'] == '1'",
    )
    job = start(tmp_path / "job", script, [3, 0], 2)
    assert finish(job, tmp_path / "job") != 0
    assert "a bug in rank one" in (tmp_path / "job" / "output.txt").read_text()
