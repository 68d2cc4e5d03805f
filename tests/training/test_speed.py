"""Speed of real trainings: the figures of a run and of its card, the slow one of two ranks, communication that
was measured, and steps that wait for no device.
"""

import os
import time
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from ranks import run_ranks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

from fsdl_dev.cards.card import card_html, card_text, make_card
from fsdl_dev.core.events import read_events
from fsdl_dev.core.job import Job
from fsdl_dev.core.rundir import create_run_dir
from fsdl_dev.records.run import Run
from fsdl_dev.train.speed.meter import SpeedMeter
from fsdl_dev.train.trainer import Trainer
from fsdl_dev.train.vision import ImageClassifier

QUIET = {"accelerator": "cpu", "enable_model_summary": False, "logger": False, "enable_checkpointing": False}


@pytest.fixture(autouse=True)
def one_thread():
    """Threads of several tests that wait for each other on a busy machine are no speed of a training."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Net(pl.LightningModule):
    "A few layers; a rank may have extra work, in its own Python or in its loader."

    def __init__(self, extra: float = 0.0, width: int = 256):
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(4)])
        self.extra = extra

    def training_step(self, batch, index):
        time.sleep(self.extra)
        return self.layers(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


class Rows(torch.utils.data.Dataset):
    def __init__(self, count: int, seconds: float = 0.0, width: int = 256):
        self.count, self.seconds, self.width = count, seconds, width

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return (torch.ones(self.width),)


def straggling(folder: str, strategy: str, work: float, loading: float) -> dict:
    "One of two ranks: the second one has extra work in its step or in its loader."
    os.environ["FSDL_RUN_DIR"], os.environ["FSDL_NODE"] = folder, f"node-{os.environ['RANK']}"
    slow = os.environ["RANK"] == "1"
    torch.manual_seed(0)
    meter = SpeedMeter(every_seconds=0.1, look_seconds=0.05, look_share=1.0, patience=2)
    trainer = Trainer(
        max_steps=30,
        strategy=strategy,
        callbacks=[meter],
        use_distributed_sampler=False,
        **QUIET | {"enable_checkpointing": True},
    )  # a run's checkpoints are no hindrance
    trainer.fit(Net(work if slow else 0.0), DataLoader(Rows(120, loading if slow else 0.0), batch_size=4))
    return {"own": meter._ranks.own, "latest": meter._latest, "looks": len(meter._ranks.shares)}


@pytest.mark.tier("long", "fsdp=2")
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp=2"])
def test_the_slow_one_of_two_ranks_is_named_with_its_node(tmp_path, strategy):
    results = run_ranks(straggling, 2, str(tmp_path), strategy, 1.0, 0.0)
    assert results[0]["looks"] >= 2 and results[0]["own"] == results[1]["own"]
    fast, slow = results[0]["own"]
    assert slow > 1.0 and slow > 1.5 * fast, results  # the fast one's waiting is not its own
    events = read_events(tmp_path / "events")
    notes = [event["text"] for event in events if event["kind"] == "note" and "is slow" in event["text"]]
    assert notes and all("Rank 1 on node node-1" in note for note in notes), notes
    # the fast rank spends its time waiting for the slow one, and says so; the slow one computes
    fast, slow = results[0]["latest"]["shares"], results[1]["latest"]["shares"]
    assert (
        fast["communication"] > 0.4
        and fast["communication"] > slow["communication"]
        and slow["compute"] > fast["compute"]
    ), (fast, slow)
    assert results[0]["latest"]["samples_per_second"] == pytest.approx(
        results[1]["latest"]["samples_per_second"], rel=0.3
    )
    told = [event for event in events if event["kind"] == "speed"]
    assert (
        {event["rank"] for event in told} == {0}
        and len(told[-1]["own_seconds"]) == 2
        and told[-1]["devices"] == 2
    )


def test_a_slow_loader_on_one_rank_is_named_as_one(tmp_path):
    results = run_ranks(straggling, 2, str(tmp_path), "ddp", 0.0, 0.1)
    notes = [
        event["text"]
        for event in read_events(tmp_path / "events")
        if event["kind"] == "note" and "is slow" in event["text"]
    ]
    assert notes and "Rank 1" in notes[0] and "waiting for data" in notes[0], (notes, results)
    shares = results[1]["latest"]["shares"]
    assert (
        shares["data"] == max(shares.values())
        and results[0]["latest"]["shares"]["communication"] > shares["communication"]
    )


def equal_ranks(folder: str) -> list:
    os.environ["FSDL_RUN_DIR"] = folder
    meter = SpeedMeter(every_seconds=0.1, look_seconds=0.05, look_share=1.0, patience=3)
    trainer = Trainer(max_steps=30, strategy="ddp", callbacks=[meter], use_distributed_sampler=False, **QUIET)
    trainer.fit(Net(0.3), DataLoader(Rows(120), batch_size=4))
    return [meter._latest["shares"], trainer.global_step]


@pytest.mark.slow
def test_equal_ranks_are_not_accused(tmp_path):
    run_ranks(equal_ranks, 2, str(tmp_path))
    assert not [
        event
        for event in read_events(tmp_path / "events")
        if event["kind"] == "note" and "is slow" in event["text"]
    ]


def trained(folder: Path, module: pl.LightningModule, loader, monkeypatch, *callbacks, **settings) -> Trainer:
    monkeypatch.setenv("FSDL_RUN_DIR", str(folder))
    trainer = Trainer(callbacks=list(callbacks), **{**QUIET, **settings})
    trainer.fit(module, loader)
    return trainer


def test_a_card_says_how_fast_and_what_to_buy(tmp_path, monkeypatch):
    run = create_run_dir(tmp_path, Job("cell", "slow disks"))
    trained(
        run.path,
        Net(),
        DataLoader(Rows(24, 0.15), batch_size=2),
        monkeypatch,
        SpeedMeter(peak_flops=1e12, every_seconds=0.05),
        max_epochs=1,
    )
    card = make_card(Run(run))
    notes = dict(card.notes)
    assert (
        "samples/s" in notes["speed"]
        and "model FLOP utilisation of 1 TFLOP/s" in notes["speed"]
        and "per sample" in notes["counted"]
    )
    assert "more loader workers" in notes["time"] and "% data" in notes["time"]
    assert "more loader workers" in card_text(card, 200) and "more loader workers" in card_html(card)


def test_a_training_without_trouble_writes_its_speed_for_every_run(tmp_path, monkeypatch):
    data = TensorDataset(torch.randn(128, 3, 32, 32), torch.randint(0, 10, (128,)))
    trained(tmp_path, ImageClassifier("test_resnet"), DataLoader(data, 16), monkeypatch, max_epochs=2)
    whole = [event for event in read_events(tmp_path / "events") if event["kind"] == "speed"][-1]
    assert (
        whole["samples_per_second"] > 0
        and abs(sum(whole["shares"].values()) - 1) < 1e-6
        and whole["device"] == "cpu"
        and "mfu" not in whole
    )


class Readings(TorchDispatchMode):
    "Where values of tensors were read, by the innermost lines."

    def __init__(self):
        super().__init__()
        self.places: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default:
            import traceback

            self.places.append("".join(traceback.format_stack(limit=9)[:-1]))
        return func(*args, **(kwargs or {}))


class Between(pl.Callback):
    "Watches from the second step on; ends the training after the twentieth."

    def __init__(self):
        self.readings = Readings()

    def on_train_batch_start(self, trainer, module, *ignored):
        if trainer.global_step == 2:
            self.readings.__enter__()

    def on_train_batch_end(self, trainer, module, *ignored):
        if trainer.global_step == 20:
            self.readings.__exit__(None, None, None)
            trainer.should_stop = True


class Plain(ImageClassifier):
    "Its optimiser reads nothing: AdamW reads its own step count, a number that rests on the CPU."

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


def test_no_step_of_a_run_reads_a_value(tmp_path, monkeypatch):
    """All of a run's callbacks, with events as often as they come.

    On a GPU each such reading would make the host wait for the device.
    """
    data, between = TensorDataset(torch.randn(512, 3, 32, 32), torch.randint(0, 10, (512,))), Between()
    trained(tmp_path, Plain("test_resnet"), DataLoader(data, 4), monkeypatch, between, max_epochs=100)
    assert not between.readings.places, between.readings.places[0]


def test_a_reading_would_be_found(tmp_path, monkeypatch):
    "The same net catches a step that reads its loss."

    class Reading(Plain):
        def training_step(self, batch, index):
            loss = super().training_step(batch, index)
            float(loss)
            return loss

    data, between = TensorDataset(torch.randn(512, 3, 32, 32), torch.randint(0, 10, (512,))), Between()
    trained(tmp_path, Reading("test_resnet"), DataLoader(data, 4), monkeypatch, between, max_epochs=100)
    assert len(between.readings.places) == 18
