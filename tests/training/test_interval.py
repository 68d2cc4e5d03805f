"""Saving as often as it pays: through the package's Trainer, in one process and in two, with the project's own
policy.
"""

import time
import warnings
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from ranks import run_ranks
from torch.utils.data import DataLoader, TensorDataset

from fsdl_dev.core.errors import FsdlError
from fsdl_dev.core.events import read_events
from fsdl_dev.train.checkpoints.interval import SaveEvery, SavePolicy, choose_interval
from fsdl_dev.train.trainer import Trainer

QUIET = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}
POLICY = SavePolicy(
    preempted_every=60.0, at_least=0.2, at_most=0.4
)  # two saves or more in a hundred steps, however slow the machine


class Slow(pl.LightningModule):
    "Ten milliseconds a step."

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch: list, index: int) -> torch.Tensor:
        time.sleep(0.01)
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01)


def train(folder: str, steps: int = 100, **settings) -> tuple[list[int], Trainer]:
    "The steps at which this process saved beside the ends of epochs."
    saved = []

    class Watch(pl.Callback):
        def on_save_checkpoint(
            self, trainer: pl.Trainer, module: pl.LightningModule, checkpoint: dict
        ) -> None:
            saved.append(trainer.global_step)

    import os

    os.environ["FSDL_RUN_DIR"] = folder
    trainer = Trainer(
        max_steps=steps, **QUIET, callbacks=[Watch(), *settings.pop("callbacks", [])], **settings
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(Slow(), DataLoader(TensorDataset(torch.ones(600, 2)), batch_size=2))
    return saved, trainer


@pytest.fixture
def run_dir(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("FSDL_RUN_DIR", str(tmp_path))
    return tmp_path


def notes(folder: Path) -> list[dict]:
    return [
        event for event in read_events(folder / "events") if event["kind"] == "note" and "interval" in event
    ]


def test_auto_measures_and_says_what_it_chose(run_dir):
    saved, trainer = train(str(run_dir), callbacks=[SaveEvery("auto", POLICY)])
    callback = next(one for one in trainer.callbacks if isinstance(one, SaveEvery))
    assert len(callback.saves) >= 2 and saved[-1] == 100
    first = notes(run_dir)[0]
    expected = choose_interval(first["interval"]["save"], 1, POLICY)
    assert first["interval"]["seconds"] == pytest.approx(expected.seconds) and first["interval"][
        "loss"
    ] == pytest.approx(expected.loss)
    assert first["text"].startswith("A checkpoint every ") and "of the time is lost" in first["text"]


def test_the_projects_policy_is_obeyed(run_dir, tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text(
        '[tool.fsdl_dev.checkpoints]\nat_least = "0.2s"\nat_most = "0.3s"\n'
    )
    monkeypatch.setenv("FSDL_CODE", str(tmp_path))
    _, trainer = train(str(run_dir), checkpoint_every="auto")
    callback = next(one for one in trainer.callbacks if isinstance(one, SaveEvery))
    assert (
        callback.chosen.seconds == 0.3 and callback.chosen.held_by == "at_most" and len(callback.saves) >= 2
    )


def test_a_policy_that_cannot_be_read_is_told_before_the_first_step(run_dir, tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text('[tool.fsdl_dev.checkpoints]\nat_leest = "1m"\n')
    monkeypatch.setenv("FSDL_CODE", str(tmp_path))
    with pytest.raises(FsdlError, match="Did you mean 'at_least'"):
        train(str(run_dir))
    with pytest.raises(FsdlError, match="does not say how often"):
        train(str(run_dir), checkpoint_every="sometimes")


def test_a_short_training_is_not_disturbed_and_steps_are_counted(run_dir):
    saved, _ = train(str(run_dir))
    assert set(saved) == {100}
    saved, _ = train(str(run_dir), checkpoint_every=40)
    assert set(saved) == {40, 80, 100}


def _in_rank(folder: str) -> list[int]:
    return train(folder, callbacks=[SaveEvery("auto", POLICY)])[0]


def test_all_ranks_save_at_the_same_steps(tmp_path):
    first, second = run_ranks(_in_rank, 2, str(tmp_path))
    assert first == second and len(set(first)) >= 2
