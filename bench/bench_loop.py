"""Steps per second of our module under our Trainer in a run, of plain Lightning, and of a raw PyTorch loop: the same network, data, optimiser and schedule.

    python bench/bench_loop.py [--rounds 7] [--steps 300] [--milliseconds 10]
    python bench/bench_loop.py --device cuda --milliseconds 50

All train in this process, in turns; another one begins each round. The network is as deep as a step of the wanted duration takes:
forward, backward and optimiser together. Ours has its events, checkpoints, guards, stop handling and speed meter; plain Lightning has no
logger, no checkpoints and no bar, which is the least it can do. "raw" and plain Lightning have AdamW as our module makes it (fused); "raw,
usual AdamW" has torch's own choice, as in most people's loops. Prints the medians, the median of each round's ratio to the raw loop, and the
CPU time that is added to a step. What happens after the last step, such as a checkpoint, is not counted: see bench_checkpoint.py.
The aim: at least 0.95 at 10 ms on a CPU, 0.98 at 50 ms on a GPU.
"""

import argparse
import logging
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable

import pytorch_lightning as pl
import torch
from side_by_side import measure
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from fsdl_dev.train.optimisers import warmup_cosine, weight_decay_groups
from fsdl_dev.train.trainer import Trainer
from fsdl_dev.train.vision import ImageClassifier

BATCH = 64


def make_network(width: int, depth: int) -> nn.Module:
    """A classifier of 8 × 8 pixels."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, width),
        *(nn.Sequential(nn.ReLU(), nn.Linear(width, width)) for _ in range(depth)),
        nn.Linear(width, 10),
    )


class Plain(pl.LightningModule):
    """What a person writes in Lightning."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.model = network

    def training_step(self, batch, index):
        loss = cross_entropy(self.model(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return optimiser_and_schedule(self, self.trainer.estimated_stepping_batches)


def optimiser_and_schedule(module: nn.Module, steps: int, fused: bool | None = True) -> dict:
    """ImageClassifier's own: AdamW in two groups, warm-up and a cosine."""
    optimiser = torch.optim.AdamW(weight_decay_groups(module, 0.05), lr=1e-3, fused=fused)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, warmup_cosine(steps, round(0.1 * steps)))
    return {"optimizer": optimiser, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Clock(pl.Callback):
    """The time from the end of the first tenth of the steps to the end of the last one."""

    def __init__(self, first: int, last: int, wait: Callable[[], None]):
        self.first, self.last, self.wait = first, last, wait

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        if index in (self.first, self.last):
            self.wait()
            now = time.perf_counter(), time.process_time()
            if index == self.first:
                self.began = now
            else:
                self.seconds, self.cpu = (end - start for start, end in zip(self.began, now))


class Loops:
    """The loops over the same data."""

    def __init__(self, steps: int, seconds: float, device: str):
        self.steps, self.device, self.depth, self.width = steps, device, 1, 4096 if device == "cuda" else 256
        self.wait = torch.cuda.synchronize if device == "cuda" else lambda: None
        self.cpu: dict[str, list[float]] = {}
        torch.manual_seed(0)
        self.data = TensorDataset(torch.randn(steps * BATCH, 1, 8, 8), torch.randint(0, 10, (steps * BATCH,)))
        for depth in (8, 32, 128):  # as many layers as a step of the wanted time takes
            self.steps, self.depth = 40, depth
            took = min(self.raw() for _ in range(3)) / self.counted
            if took >= seconds:
                break
        self.steps, self.depth = steps, max(1, round(depth * seconds / took))

    @property
    def skipped(self) -> int:
        return max(1, self.steps // 10)

    @property
    def counted(self) -> int:
        return self.steps - self.skipped

    def network(self) -> nn.Module:
        return make_network(self.width, self.depth)

    def clock(self) -> Clock:
        return Clock(self.skipped - 1, self.steps - 1, self.wait)

    def loader(self) -> DataLoader:
        return DataLoader(
            torch.utils.data.Subset(self.data, range(self.steps * BATCH)),
            BATCH,
            pin_memory=self.device == "cuda",
        )

    def raw(self, fused: bool | None = True) -> float:  # seconds
        """What a person writes in PyTorch."""
        model = self.network().to(self.device).train()
        both = optimiser_and_schedule(model, self.steps, fused)
        optimiser, schedule, clock = both["optimizer"], both["lr_scheduler"]["scheduler"], self.clock()
        for index, (images, targets) in enumerate(self.loader()):
            images, targets = (
                images.to(self.device, non_blocking=True),
                targets.to(self.device, non_blocking=True),
            )
            optimiser.zero_grad()
            cross_entropy(model(images), targets).backward()
            optimiser.step()
            schedule.step()
            clock.on_train_batch_end(None, None, None, None, index)
        return self._read("raw" if fused else "raw, usual AdamW", clock)

    def usual(self) -> float:
        return self.raw(None)

    def _read(self, name: str, clock: Clock) -> float:
        self.cpu.setdefault(name, []).append(clock.cpu)
        return clock.seconds

    def plain(self) -> float:
        clock = self.clock()
        trainer = pl.Trainer(
            logger=False,
            enable_checkpointing=False,
            devices=1,
            accelerator=self.device,
            max_epochs=1,
            enable_model_summary=False,
            enable_progress_bar=False,
            callbacks=[clock],
        )
        trainer.fit(Plain(self.network()), self.loader())
        return self._read("plain Lightning", clock)

    def ours(self) -> float:
        clock = self.clock()
        module = ImageClassifier("test_resnet", num_classes=10)
        module.model = self.network()
        with tempfile.TemporaryDirectory() as folder:
            os.environ["FSDL_RUN_DIR"] = folder
            try:
                precision = {"precision": "32-true"} if self.device == "cuda" else {}
                Trainer(
                    accelerator=self.device,
                    max_epochs=1,
                    enable_model_summary=False,
                    callbacks=[clock],
                    **precision,
                ).fit(module, self.loader())
            finally:
                os.environ.pop("FSDL_RUN_DIR")
        return self._read("ours", clock)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--milliseconds", type=float, default=10.0)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    loops = Loops(options.steps, options.milliseconds / 1000, options.device)
    times = measure(
        {
            "raw": loops.raw,
            "raw, usual AdamW": loops.usual,
            "plain Lightning": loops.plain,
            "ours": loops.ours,
        },
        options.rounds,
        rotate=True,
    )
    print(
        f"{loops.depth} layers of {loops.width}, {statistics.median(times['raw']) / loops.counted * 1000:.1f}"
        " ms a step in the raw loop"
    )
    for name, seconds in times.items():
        cpu = statistics.median(loops.cpu[name][-options.rounds :]) - statistics.median(
            loops.cpu["raw"][-options.rounds :]
        )
        ratio = statistics.median(raw / other for raw, other in zip(times["raw"], seconds))
        rate = loops.counted / statistics.median(seconds)
        print(
            f"{name:<16} {rate:8.2f} steps/s   {ratio:.4f} of raw (median of the rounds' ratios)  "
            f" {cpu / loops.counted * 1e6:+6.0f} µs of CPU a step"
        )


if __name__ == "__main__":
    main()
