"""The store of a small team, for its board: a baseline, candidates, a model, failures that were fixed, a sweep,
costs, a budget, a look at the machines, and runs that go on.

python tests/support/team_store.py FOLDER makes it there, as a project.
"""

import json
import math
import random
import sys
import time
from pathlib import Path

from fsdl_dev.core.event_kinds import Accounting, Checkpoint, Failure, Metric, Progress, Sealed, Trial
from fsdl_dev.core.event_kinds import Sweep as SweepEvent
from fsdl_dev.core.job import Job
from fsdl_dev.core.rundir import RunDir, create_run_dir
from fsdl_dev.core.settings import find_project
from fsdl_dev.share.model_file import Promotion, append_line

SETTINGS = """
[project]
name = "digits"

[tool.fsdl_dev]
store = ".fsdl"

[tool.fsdl_dev.prices]
currency = "USD"
local = 0.40

[tool.fsdl_dev.budgets]
november = {amount = "100 USD", of = "project", per = "month"}

[tool.fsdl_dev.board.views]
good = "val_acc > 0.95"
"by ada" = "owner = ada"
cheap = {where = "cost < 0.5 and state = succeeded", sort = "val_acc"}
"""
OWNERS = ("Ada Lovelace <ada@example.org>", "Grace Hopper <grace@example.org>")


class Team:
    "Makes the runs of one project."

    def __init__(self, root: Path):
        self.root, self.store, self.draw = root, root / ".fsdl", random.Random(0)
        root.mkdir(parents=True, exist_ok=True)
        (root / "pyproject.toml").write_text(SETTINGS)

    def start(self, name: str = "Train", search: bool = False, **labels) -> tuple[RunDir, object, object]:
        "A run that runs; its worker's and its rank's writer."
        tags = {"owner": self.draw.choice(OWNERS), "task": "digits"} | labels.pop("tags", {})
        cell = {"notebook": "nbs/00_train.ipynb", "cell_id": name.lower(), "source": f"train({labels})"}
        run = create_run_dir(self.store, Job("cell", name, params=labels, tags=tags, search=search, **cell))
        worker, rank = run.writer("worker"), run.writer("rank0", 0)
        for state in ("queued", "starting", "running"):
            run.set_state(worker, state, "example")
        return run, worker, rank

    def train(
        self, lr: float, width: int = 64, ends: bool = True, sealed: float | None = None, **more
    ) -> RunDir:
        "A run that learns: the larger lr * width, the better, up to a point."
        run, worker, rank = self.start(lr=lr, width=width, **more)
        steps = 60
        for step in range(3, steps, 3):
            accuracy = (1 - math.exp(-lr * width * step / 60)) * 0.99
            rank.write(Metric(step=step, values={"val_acc": accuracy, "val_loss": 1 - accuracy}))
        rank.write(Progress(step=steps if ends else 30, total=steps, epoch=0, stage="train"))
        if not ends:
            return run
        best = {"metric": "val_acc", "mode": "max", "value": accuracy, "best": True}
        rank.write(Checkpoint(path="checkpoints/best.ckpt", step=57, bytes=5000, **best))
        if sealed is not None:
            worker.write(
                Sealed(seal="3f9c21ab", values={"accuracy": sealed}, checkpoint="checkpoints/best.ckpt")
            )
        self.end(run, worker, "succeeded", "finished after 41 s")
        return run

    def end(self, run: RunDir, worker, state: str, reason: str) -> None:
        run.set_state(worker, state, reason)
        cost = round(self.draw.uniform(0.1, 1.2), 2)
        run.writer("observer").write(
            Accounting(gpu_seconds=2400.0, elapsed=2400.0, cost=cost, currency="USD")
        )

    def fail(self, kind: str, message: str, oom: dict | None = None, **labels) -> RunDir:
        run, worker, _ = self.start(**labels)
        worker.write(Failure(type=kind, message=message, oom=oom, exit_code=1))
        self.end(run, worker, "failed", f"{kind}: {message}")
        return run

    def sweep(self) -> RunDir:
        "A sweep of four trials."
        run, worker, _ = self.start("Sweep", search=True, lr=0.02)
        words = run.path.name.split("-", 2)[2]
        for number, lr in enumerate((0.01, 0.02, 0.03, 0.05)):
            trial = self.train(lr, tags={"sweep": words})
            value = 1 - math.exp(-lr * 64)
            worker.write(
                Trial(number=number, run=trial.path.name, params={"lr": lr}, state="done", value=value)
            )
        worker.write(SweepEvent(metric="val_acc", mode="max", trials=4, best=3))
        self.end(run, worker, "succeeded", "4 trials")
        return run

    def promote(self, run: RunDir, status: str, value: float, before: RunDir | None, why: str) -> None:
        held = (
            "digits",
            status,
            run.id,
            "checkpoints/best.ckpt",
            "models/0a1b",
            {"best.ckpt": "0" * 64},
            None,
        )
        against = {"run": before.id, "value": value - 0.02} if before else None
        checks = [
            "✓ run     succeeded",
            "✓ tests   12 passed",
            "✓ digest  SHA-256 as recorded",
            "✓ metric  better",
        ]
        day = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
        evidence = ("val_acc", "max", value, {"digits": "d" * 64}, against, checks, OWNERS[0], day, why)
        append_line(Promotion(*held, *evidence), find_project(self.root))


def make_team(root: Path) -> Team:
    "All of it."
    team = Team(root)
    first = team.train(0.03, sealed=0.82, tags={"status": "baseline"})
    team.fail(
        "RuntimeError",
        "CUDA out of memory. Tried to allocate 9.00 GiB",
        {"asked": 9 << 30},
        lr=0.05,
        width=4096,
    )
    team.fail(
        "RuntimeError",
        "CUDA out of memory. Tried to allocate 4.50 GiB",
        {"asked": 9 << 29},
        lr=0.05,
        width=2048,
    )
    second = team.train(0.05, sealed=0.945)
    team.fail("FileNotFoundError", "data/digits-v3.npz", lr=0.05)
    third = team.train(0.06, sealed=0.951, tags={"status": "candidate"})
    team.train(0.02, width=32)
    team.train(0.08, sealed=0.931)  # better as reported, worse as sealed
    team.sweep()
    team.fail("ValueError", "width 65 is more than the 64 columns of the data", name="Evaluate", width=65)
    team.train(0.07, ends=False)
    queued = create_run_dir(team.store, Job("script", "eval.py", script="eval.py", tags={"owner": OWNERS[1]}))
    queued.set_state(queued.writer("launcher"), "queued", "waits for a slot")
    team.promote(first, "production", 0.84, None, "the first")
    team.promote(second, "production", 0.95, first, "more learning rate")
    team.promote(third, "candidate", 0.968, None, "to be tried on new images")
    (team.store / "capacity").mkdir()
    look = {
        "t": time.time() - 600,
        "allocated": 12,
        "idle": 4,
        "down": 0,
        "stranded": 2,
        "waiting": 3,
        "asked": 10,
    }
    (team.store / "capacity" / "lab.jsonl").write_text(json.dumps(look) + "\n")
    return team


if __name__ == "__main__":
    print(make_team(Path(sys.argv[1]).absolute()).root)
