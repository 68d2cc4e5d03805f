"""A project with a promoted model that takes pictures, texts or questions: trained in this process, in seconds."""

from pathlib import Path

import torch

from fsdl_dev.core.check import Check
from fsdl_dev.core.event_kinds import Checkpoint, Data, Metric
from fsdl_dev.core.files import file_sha256
from fsdl_dev.core.job import Job, LaunchRecord
from fsdl_dev.core.rundir import create_run_dir
from fsdl_dev.core.settings import find_project, open_store
from fsdl_dev.data.digits import DigitsData
from fsdl_dev.data.inputs import Takes
from fsdl_dev.records.run import Run
from fsdl_dev.share.model_file import Promotion
from fsdl_dev.share.promote import promote

NET = """
import torch
from pytorch_lightning import LightningModule


class Net(LightningModule):
    "A small network of 16 x 16 pixels."

    def __init__(self, width: int = 64):
        super().__init__()
        self.save_hyperparameters()
        self.layers = torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(256, width), torch.nn.ReLU(), torch.nn.Linear(width, 10)
        )

    def forward(self, images):
        return self.layers(images)
"""
DATA = """
import fsdl_dev


def load():
    return fsdl_dev.DigitsData(batch_size=64, image_size=16)
"""


def make_project(root: Path) -> Path:
    """A folder with a network and its data, named for the feedback."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "digit_net.py").write_text(NET)
    (root / "digit_data.py").write_text(DATA)
    (root / "pyproject.toml").write_text('[tool.fsdl_dev.feedback]\ndata = "digit_data:load"\n')
    return root


def add_run(
    root: Path, module, cls: str, value: float, takes: Takes | None, digest: str = "d1", **job
) -> Run:
    """A run that succeeded, with the module as its checkpoint, and what its data takes of a person."""
    passed = (Check("tests", "pass", "2 notebooks"),)
    made = create_run_dir(
        open_store(find_project(root)),
        Job(**{"kind": "script", "name": "train.py", **job}),
        LaunchRecord(checks=passed),
    )
    made.checkpoints.mkdir(exist_ok=True)
    path = made.checkpoints / "last.ckpt"
    saved = {"state_dict": module.state_dict(), "hyper_parameters": dict(module.hparams)}
    torch.save({**saved, "pytorch-lightning_version": "2.6.6"}, path)
    log = made.writer("rank0", 0)
    log.write(Data(name="DigitsData", digest=digest, takes=takes.to_dict() if takes else None))
    log.write(Metric(step=10, values={"val_accuracy": value}))
    said = {
        "metric": "val_accuracy",
        "mode": "max",
        "value": value,
        "best": True,
        "bytes": path.stat().st_size,
    }
    log.write(Checkpoint(path="checkpoints/last.ckpt", step=10, sha256=file_sha256(path), cls=cls, **said))
    for state in ("queued", "starting", "running", "succeeded"):
        made.set_state(made.writer("worker"), state, "by hand")
    return Run(made)


def trained_net(root: Path, images: torch.Tensor, targets: torch.Tensor, steps: int = 150, seed: int = 0):
    """The network of the project after some steps on all examples at once."""
    import sys

    sys.path[:0] = [str(root)] if str(root) not in sys.path else []
    from digit_net import Net

    torch.manual_seed(seed)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(images), targets).backward()
        optimizer.step()
    return net.eval()


def promote_digits(root: Path, seed: int = 0, value: float = 0.95, name: str = "digits") -> Promotion:
    """Train the network on the digits' training part, and promote it."""
    data = DigitsData(batch_size=64, image_size=16)
    net = trained_net(root, *data.parts["train"].tensors, seed=seed)
    run = add_run(root, net, "digit_net:Net", value, data.takes)
    return promote(run, name, folder=root)
