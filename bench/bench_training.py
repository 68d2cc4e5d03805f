"""Steps per second of our Trainer with its events, checkpoints and stop handling, against Lightning's bare
Trainer.

python bench/bench_training.py [--rounds 5] [--steps 1000] [--milliseconds 10]

Both train the same module on the same data in this process, in turns; the order within a round alternates. A
step computes a small network and then sleeps for what is missing to the wanted duration, so that the machine's
noise weighs little and every microsecond that a callback adds is visible. Bare is Lightning without logger,
checkpoints and bars, with the same optimiser and the same calls of `self.log`: one in each step, and none, since
our Trainer makes that call cheaper than Lightning's does. Prints the medians, the ratio, and the CPU time that is
added to a step, checkpoints and validation included; the aims are 0.98 and 2 %.
"""

import argparse
import logging
import os
import statistics
import tempfile
import time
import warnings
from pathlib import Path

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from fsdl_dev.core.events import read_events
from fsdl_dev.train.trainer import Trainer


class Module(pl.LightningModule):
    "A network whose step lasts a wanted time."

    monitor = ("val_loss", "min")

    def __init__(self, seconds: float, logs: bool):
        super().__init__()
        self.logs = logs
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
        self.seconds = seconds

    def training_step(self, batch, index):
        end = time.perf_counter() + self.seconds
        loss = torch.nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
        time.sleep(max(0.0, end - time.perf_counter()))
        if self.logs:
            self.log("train_loss", loss)  # after the wait, which would hide what logging costs
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", torch.nn.functional.cross_entropy(self.layers(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-3)


class Clock(pl.Callback):
    "The time from the first training step to the end of the training."

    def on_train_start(self, trainer, module):
        self.start, self.start_cpu = time.perf_counter(), time.process_time()

    def on_train_end(self, trainer, module):
        self.seconds, self.cpu = time.perf_counter() - self.start, time.process_time() - self.start_cpu


def train(
    ours: bool, steps: int, seconds: float, logs: bool
) -> tuple[float, float]:  # steps per second, CPU seconds per step
    "One training of two epochs, in a run directory or bare."
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(steps // 2 * 8, 64), torch.randint(0, 10, (steps // 2 * 8,)))
    loader, validation, clock = (
        DataLoader(data, 8),
        DataLoader(torch.utils.data.Subset(data, range(16)), 8),
        Clock(),
    )
    shared = {
        "max_epochs": 2,
        "accelerator": "cpu",
        "enable_model_summary": False,
        "enable_progress_bar": False,
        "callbacks": [clock],
    }
    with tempfile.TemporaryDirectory() as folder:
        if ours:
            os.environ["FSDL_RUN_DIR"] = folder
            trainer = Trainer(**shared)
        else:
            os.environ.pop("FSDL_RUN_DIR", None)
            trainer = pl.Trainer(logger=False, enable_checkpointing=False, devices=1, **shared)
        trainer.fit(Module(seconds, logs), loader, validation)
        if ours:
            kinds = {event["kind"] for event in read_events(Path(folder) / "events")}
            assert {"progress", "metric", "checkpoint"} <= kinds and (
                Path(folder) / "checkpoints" / "last.ckpt"
            ).is_file()
    os.environ.pop("FSDL_RUN_DIR", None)
    return trainer.global_step / clock.seconds, clock.cpu / trainer.global_step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--milliseconds", type=float, default=10.0)
    options = parser.parse_args()
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    for logs in (True, False):
        compare(logs, options.rounds, options.steps, options.milliseconds)


def compare(logs: bool, rounds: int, steps: int, milliseconds: float) -> None:
    "Train in turns, and print what came of it."
    rates: dict[bool, list[float]] = {True: [], False: []}
    costs: dict[bool, list[float]] = {True: [], False: []}
    train(True, 30, 0.001, logs), train(False, 30, 0.001, logs)  # warm up
    for number in range(rounds):
        for ours in (True, False) if number % 2 else (False, True):
            rate, cost = train(ours, steps, milliseconds / 1000, logs)
            rates[ours].append(rate)
            costs[ours].append(cost)
    ratio = statistics.median(one / other for one, other in zip(rates[True], rates[False]))
    added = statistics.median(one - other for one, other in zip(costs[True], costs[False]))
    print("A module that logs its loss in each step:" if logs else "A module that logs nothing in its steps:")
    for ours, name in ((True, "fsdl_dev Trainer in a run"), (False, "Lightning's Trainer, bare")):
        each = sorted(round(rate, 2) for rate in rates[ours])
        print(f"  {name} {statistics.median(rates[ours]):8.2f} steps/s   {each}")
    print(f"  median of each round's ratio {ratio:.4f}")
    share = added * 1e5 / milliseconds
    print(f"  CPU time added per step {added * 1e6:.0f} µs of {milliseconds:g} ms: {share:.2f} %")


if __name__ == "__main__":
    main()
