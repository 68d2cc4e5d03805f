"""Steps per second of our module under our Trainer in a run, of plain Lightning, and of a raw PyTorch loop.

    python bench/bench_loop.py [--rounds 7] [--steps 300] [--milliseconds 10]
    python bench/bench_loop.py --device cuda --milliseconds 50

All train the same network with the same data, optimiser and schedule in this process, in turns; another one
begins each round. The network is as deep as a step of the wanted duration takes: forward, backward and
optimiser together. Ours has its events, checkpoints, guards, stop handling and speed meter; plain Lightning
has no logger, no checkpoints and no bar, which is the least it can do. "raw" and plain Lightning have AdamW
as our module makes it (fused); "raw, usual AdamW" has torch's own choice, as in most people's loops. Prints
the medians, the median of each round's ratio to the raw loop, and the CPU time that is added to a step. What
happens after the last step, such as a checkpoint, is not counted. The aim: at least 0.95 at 10 ms on a CPU,
0.98 at 50 ms on a GPU.
"""

import argparse
import statistics

import pytorch_lightning as pl
import torch
from side_by_side import measure
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from training import Clock, be_quiet, median_ratio, run_folder

from fsdl_dev.train.optimisers import warmup_cosine, weight_decay_groups
from fsdl_dev.train.trainer import Trainer
from fsdl_dev.train.vision import ImageClassifier

BATCH = 64


def make_network(width: int, depth: int, tokens: int) -> nn.Module:
    """A classifier of 8 × 8 pixels whose blocks work on `tokens` rows of each sample."""
    torch.manual_seed(0)
    blocks = (nn.Sequential(nn.ReLU(), nn.Linear(width, width)) for _ in range(depth))
    first = nn.Sequential(nn.Flatten(), nn.Linear(64, tokens * width), nn.Unflatten(1, (tokens, width)))
    return nn.Sequential(first, *blocks, nn.Flatten(), nn.Linear(tokens * width, 10))


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


class Loops:
    """The loops over the same data."""

    def __init__(self, steps: int, seconds: float, device: str):
        # rows fill a GPU: 128 layers of 4096 with few rows would have 30 GB of weights and states
        self.device, self.width, self.tokens = device, *((2048, 128) if device == "cuda" else (256, 1))
        self.cpu: dict[str, list[float]] = {}
        torch.manual_seed(0)
        samples = max(steps, 20) * BATCH
        self.data = TensorDataset(torch.randn(samples, 1, 8, 8), torch.randint(0, 10, (samples,)))
        for depth in (8, 32, 128):  # as many layers as a step of the wanted time takes
            self.steps, self.depth = 20, depth
            took = min(self.raw() for _ in range(3)) / self.counted
            if took >= seconds / 3:
                break
        self.steps, self.depth = steps, max(1, round(depth * seconds / took))

    @property
    def skipped(self) -> int:
        return max(1, self.steps // 10)

    @property
    def counted(self) -> int:
        return self.steps - self.skipped

    def network(self) -> nn.Module:
        return make_network(self.width, self.depth, self.tokens)

    def clock(self) -> Clock:
        return Clock(self.skipped - 1, self.steps - 1, self.device)

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
            clock.step(index)
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
        precision = {"precision": "32-true"} if self.device == "cuda" else {}
        with run_folder():
            trainer = Trainer(
                accelerator=self.device,
                max_epochs=1,
                enable_model_summary=False,
                callbacks=[clock],
                **precision,
            )
            trainer.fit(module, self.loader())
        return self._read("ours", clock)


def compare(rounds: int, steps: int, milliseconds: float, device: str, only: tuple[str, ...] = ()) -> dict:
    """The network's size; of each loop the speed, its ratio to raw and the CPU time added to a step."""
    be_quiet()
    torch.set_num_threads(1)
    loops = Loops(steps, milliseconds / 1000, device)
    loops.cpu.clear()
    measures = {
        "raw": loops.raw,
        "raw, usual AdamW": loops.usual,
        "plain Lightning": loops.plain,
        "ours": loops.ours,
    }
    times = measure(
        {name: one for name, one in measures.items() if not only or name in only}, rounds, rotate=True
    )
    cpu = {name: statistics.median(seconds[-rounds:]) / loops.counted for name, seconds in loops.cpu.items()}
    rows = {
        name: {
            "rate": loops.counted / statistics.median(seconds),
            "ratio": median_ratio(times["raw"], seconds),
            "added_us": (cpu[name] - cpu["raw"]) * 1e6,
        }
        for name, seconds in times.items()
    }
    return {
        "depth": loops.depth,
        "width": loops.width,
        "milliseconds": 1000 / rows["raw"]["rate"],
        "loops": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--milliseconds", type=float, default=10.0)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    found = compare(**vars(parser.parse_args()))
    print(
        f"{found['depth']} layers of {found['width']}, {found['milliseconds']:.1f} ms a step in the raw loop"
    )
    for name, row in found["loops"].items():
        added = f"{row['added_us']:+6.0f} µs of CPU a step"
        ratio = f"{row['ratio']:.4f} of raw (median of the rounds' ratios)"
        print(f"{name:<16} {row['rate']:8.2f} steps/s   {ratio}   {added}")


if __name__ == "__main__":
    main()
