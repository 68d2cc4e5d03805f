"""Plays a worker for the tests of cards: makes a run directory in STORE, prints its name, and feeds it events
until it ends.

SIGTERM is answered as a worker answers it: stopping, then cancelled. The training curve is made up. With
--until FILE it ends when that is there.
"""

import argparse
import math
import signal
import sys
import time
from pathlib import Path

from fsdl_dev.core.event_kinds import Checkpoint, Failure, Metric, Placed, Progress, Resource
from fsdl_dev.core.job import Job
from fsdl_dev.core.rundir import create_run_dir
from fsdl_dev.worker.processes import identity

parser = argparse.ArgumentParser()
parser.add_argument("store", type=Path)
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--pause", type=float, default=0.1, help="seconds between steps")
parser.add_argument(
    "--until", type=Path, help="end at the step, of the twentieth or a later one, at which this file is there"
)
parser.add_argument("--end", default="succeeded")
parser.add_argument("--name", default="40_digits.ipynb · Train the digits")
options = parser.parse_args()
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))

run = create_run_dir(
    options.store,
    Job("cell", options.name, params={"lr": 3e-4}, tags={"task": "digits", "dataset": "digits@v1"}),
)
worker, rank, resource = run.writer("worker"), run.writer("rank0", rank=0), run.writer("resource")
run.set_state(worker, "queued", "launched", position=1, **identity().as_dict())
run.set_state(worker, "starting", "2 CPU slots", **identity().as_dict())
worker.write(Placed(slots=[0, 1], device="cpu", procs=2))
run.set_state(worker, "running", "2 processes", **identity().as_dict())
log = open(run.log(0), "a", buffering=1)  # a test may write lines of its own from the next line on
print(run.id, flush=True)
for step in range(1, options.steps + 1):
    time.sleep(options.pause)
    epoch = (step - 1) * 5 // options.steps
    rank.write(
        Metric(
            step=step,
            epoch=epoch,
            values={
                "train_loss": 2.2 * math.exp(-3 * step / options.steps) + 0.05 + 0.03 * math.sin(step * 2.3)
            },
        )
    )
    rank.write(
        Progress(
            step=step,
            total=options.steps,
            epoch=epoch,
            epochs=5,
            stage="train",
            rate=1 / max(1e-3, options.pause),
        )
    )
    resource.write(Resource(cpu=180 + 10 * math.sin(step), rss=1.1e9 + 1e6 * step, gpu=[]))
    if step % (options.steps // 5) == 0:
        score = 0.985 - 0.7 * math.exp(-4 * step / options.steps)
        path = run.checkpoints / f"step{step}.ckpt"
        path.write_bytes(b"x" * 5000)
        rank.write(
            Metric(
                step=step,
                epoch=epoch,
                values={"val_loss": 2.1 * math.exp(-3 * step / options.steps) + 0.12, "val_acc": score},
            )
        )
        rank.write(
            Checkpoint(
                path=f"checkpoints/{path.name}",
                step=step,
                epoch=epoch,
                metric="val_acc",
                value=score,
                mode="max",
                bytes=5000,
                best=True,
            )
        )
        print(f"epoch {epoch}: val_acc {score:.3f}", file=log)
    if stop:
        run.set_state(worker, "stopping", "cancelled by the user", **identity().as_dict())
        time.sleep(0.5)
        run.set_state(worker, "cancelled", "cancelled by the user", exit_code=143)
        sys.exit()
    if step >= 20 and options.until and options.until.exists():
        break
if options.end == "failed":
    rank.write(
        Failure(
            type="ValueError",
            message="Expected input batch_size (64) to match target batch_size (32).",
            frames=[],
            traceback="",
            exit_code=1,
        )
    )
run.set_state(
    worker,
    options.end,
    "exit code 1" if options.end == "failed" else "exit code 0",
    exit_code=int(options.end == "failed"),
)
