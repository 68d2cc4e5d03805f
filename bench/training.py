"""What the measurements of trainings share: a clock that waits for the device and a run's folder."""

import logging
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytorch_lightning as pl
import torch


class Clock(pl.Callback):
    """Wall-clock and CPU seconds from the end of step `first` to that of `last`, after a synchronisation.

    Lightning calls on_train_batch_end; a loop written by hand calls `step`.
    """

    def __init__(self, first: int, last: int, device: str):
        self.first, self.last = first, last
        self.wait: Callable[[], None] = torch.cuda.synchronize if device == "cuda" else lambda: None

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.step(index)

    def step(self, index: int) -> None:
        if index in (self.first, self.last):
            self.wait()
            now = time.perf_counter(), time.process_time()
            if index == self.first:
                self.began = now
            else:
                self.seconds, self.cpu = (end - start for start, end in zip(self.began, now))


@contextmanager
def run_folder() -> Iterator[None]:
    """Let our Trainer believe it is in a run: with events, checkpoints, guards and the speed meter."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FSDL_RUN_DIR"] = folder
        try:
            yield
        finally:
            os.environ.pop("FSDL_RUN_DIR")


def be_quiet() -> None:
    """No warnings and no words of Lightning between the lines of a table."""
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")


def median_ratio(base: Sequence[float], other: Sequence[float]) -> float:
    """The median of each round's base : other. Above 1, the other one is faster."""
    return statistics.median(one / two for one, two in zip(base, other))
