"""A small project with a sealed cell, and runs of it that have ended: for the tests of sealed evaluation."""

import json
import math
import os
from pathlib import Path

import torch

from fsdl_dev.core.check import Check
from fsdl_dev.core.event_kinds import Checkpoint, Data, Metric
from fsdl_dev.core.files import file_sha256
from fsdl_dev.core.job import Job, LaunchRecord
from fsdl_dev.core.rundir import Placement, RunDir, create_run_dir
from fsdl_dev.core.settings import find_project, open_store
from fsdl_dev.snapshot.take import take_snapshot
from fsdl_dev.worker.sealed.at_end import seal_run

NET = """class Net(torch.nn.Module):
    "The model."

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.layer(x)
"""
ROWS = """def test_rows():
    "The rows of the test."
    lines = Path("data/test.csv").read_text().split()
    return torch.tensor([[float(part) for part in line.split(",")] for line in lines])
"""
EVALUATE = """def evaluate(model) -> dict[str, float]:
    rows = test_rows()
    said = model(rows[:, :2]).argmax(1)
    return {"accuracy": torch.eq(said, rows[:, 2].long()).float().mean()}
"""
IMPORTS = "from pathlib import Path\n\nimport torch\n"
TEST = "1,0,0\n0,1,1\n2,0,0\n0,2,1\n1,2,0\n"
TRAIN = "1,0,0\n0,3,1\n"


def cells(
    imports: str = IMPORTS,
    rows: str = ROWS,
    net: str = NET,
    evaluate: str = EVALUATE,
    settings: str = "LR = 0.1\n",
) -> list[str]:
    """The code cells of the notebook."""
    exported = [f"#| export\n{imports}", f"#| export\n{settings}", f"#| export\n{net}", f"#| export\n{rows}"]
    return ["#| default_exp digits", *exported, f"#| export\n#| sealed\n{evaluate}"]


def write_notebook(path: Path, sources: list[str]) -> None:
    entries = [
        {
            "cell_type": "code",
            "id": f"cell{at}",
            "source": text,
            "metadata": {},
            "outputs": [],
            "execution_count": None,
        }
        for at, text in enumerate(sources)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"cells": entries, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))


def exported(sources: list[str]) -> str:
    """The module that nbdev makes of the cells."""
    parts = []
    for text in sources:
        if "#| export" in text:
            parts.append("\n".join(line for line in text.splitlines() if not line.startswith("#|")))
    return "\n\n".join(parts) + "\n"


def make_project(root: Path, sources: list[str] | None = None, notebook: str = "nbs/00_digits.ipynb") -> Path:
    """A project with its data beside it, git-ignored files and all."""
    sources = sources or cells()
    write_notebook(root / notebook, sources)
    (root / "proj").mkdir(parents=True, exist_ok=True)
    (root / "proj" / "__init__.py").write_text('__version__ = "0.1"\n')
    (root / "proj" / "digits.py").write_text(exported(sources))
    (root / "data").mkdir(exist_ok=True)
    (root / "data" / "test.csv").write_text(TEST)
    (root / "data" / "train.csv").write_text(TRAIN)
    names = (
        "lib_name = proj\nlib_path = proj\nnbs_path = nbs\ndoc_path = _docs\nversion = 0.1\nbranch = main\n"
    )
    names += (
        "user = ada\nrepo = proj\nauthor = Ada\nauthor_email = ada@example.org\ndescription = A project\n"
    )
    names += "title = proj\n"
    (root / "settings.ini").write_text(f"[DEFAULT]\n{names}")
    (root / "pyproject.toml").write_text('[project]\nname = "proj"\nversion = "0.1"\n[tool.fsdl_dev]\n')
    return root


def save_model(path: Path, good: bool = True) -> None:
    """A checkpoint of Net: one that is right on four of the five rows, or on one."""
    weight = torch.eye(2) if good else 1 - torch.eye(2)
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {"layer.weight": weight, "layer.bias": torch.zeros(2)}
    torch.save({"state_dict": state, "pytorch-lightning_version": "2.6"}, path)


def made_run(root: Path, good: bool = True, reported: float = 0.8, train: str = "", test: str = "") -> RunDir:
    """A run of the project whose training has just ended."""
    project = find_project(root)
    store = open_store(project)
    snapshot = take_snapshot(project)
    launch = LaunchRecord(checks=(Check("tests", "pass", "2 notebooks"),), project=str(root))
    run = create_run_dir(store, Job("notebook", "digits", notebook="nbs/00_digits.ipynb"), launch)
    record = {
        "digest": snapshot.digest,
        "beside": list(snapshot.beside),
        "inode": root.stat().st_ino,
        "data": [],
    }
    run.snapshot_file.write_text(json.dumps(record))
    run.logs.mkdir(exist_ok=True)
    path = run.checkpoints / "best.ckpt"
    save_model(path, good)
    log = run.writer("rank0", 0)
    log.write(
        Data(
            name="digits",
            digest="d1",
            splits={"train": 2},
            sources={split: place for split, place in (("train", train), ("test", test)) if place} or None,
        )
    )
    log.write(Metric(step=10, values={"accuracy": reported}))
    told = {
        "metric": "accuracy",
        "mode": "max",
        "value": reported,
        "best": True,
        "bytes": path.stat().st_size,
    }
    log.write(
        Checkpoint(
            path="checkpoints/best.ckpt", step=10, sha256=file_sha256(path), cls="proj.digits:Net", **told
        )
    )
    for name in ("queued", "starting", "running"):
        run.set_state(run.writer("worker"), name, "by hand")
    return run


def placement(root: Path) -> Placement:
    return Placement(project=str(root), store=str(open_store(find_project(root))))


def end(
    run: RunDir, root: Path, environment: dict[str, str] | None = None, state: str = "succeeded"
) -> RunDir:
    """What the worker does at the end: the sealed cells, then the final state."""
    writer = run.writer("worker")
    seal_run(run, writer, placement(root), dict(environment or os.environ), math.inf, lambda: False)
    run.set_state(writer, state, "by hand")
    return run


def sealed_run(root: Path, **options) -> RunDir:
    """A run of the project, measured and ended."""
    environment = options.pop("environment", None)
    return end(made_run(root, **options), root, environment)


TRAIN_SCRIPT = """
import os
from pathlib import Path

import torch

from fsdl_dev.core.event_kinds import Checkpoint, Metric
from fsdl_dev.core.events import current_writer
from fsdl_dev.core.files import file_sha256

path = Path(os.environ["FSDL_RUN_DIR"], "checkpoints", "best.ckpt")
path.parent.mkdir(exist_ok=True)
state = {"layer.weight": torch.eye(2), "layer.bias": torch.zeros(2)}
torch.save({"state_dict": state, "pytorch-lightning_version": "2.6"}, path)
told = {"metric": "accuracy", "mode": "max", "value": 1.0, "best": True, "bytes": path.stat().st_size}
writer = current_writer()
writer.write(Metric(step=1, values={"accuracy": 1.0}))
writer.write(Checkpoint(path="checkpoints/best.ckpt", step=1, sha256=file_sha256(path), cls="proj.digits:Net", **told))
"""
