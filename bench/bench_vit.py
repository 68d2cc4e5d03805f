"""Images per second of a ViT-B/16: timm's training loop, built of timm's own parts, beside ImageClassifier under our Trainer.

    python bench/bench_vit.py [--rounds 5] [--steps 60] [--batch 256] [--compile]     on a GPU, in bf16
    python bench/bench_vit.py --tiny                                                  on a CPU: a tiny ViT, to see that it runs

timm's train.py is not in its wheel; what `train.py --model vit_base_patch16_224 --amp --amp-dtype bfloat16 --opt adamw --smoothing 0.1 --no-aug` does
in a step is written here with timm's create_model, create_loader with its prefetcher (normalisation on the GPU), create_optimizer_v2, LabelSmoothingCrossEntropy and
AverageMeter, its loss read every 50 steps. Both train on the same made-up pictures, which rest in memory, in this process and in turns; another one
begins each round. The first steps are not counted. The aim: at least timm's throughput.
"""

import argparse
import logging
import os
import statistics
import tempfile
import time
import warnings

import numpy as np
import timm
import torch
from bench_gpt2 import Clock
from PIL import Image
from side_by_side import measure
from timm.data import create_loader
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import AverageMeter
from torch.utils.data import DataLoader, Dataset

from fsdl_dev.models.flops import count_batch, meta_twin
from fsdl_dev.planner.devices import find_gpu
from fsdl_dev.train.trainer import Trainer
from fsdl_dev.train.vision import ImageClassifier

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Pictures(Dataset):
    """Made-up pictures that rest in memory: PIL images for timm's transform, or tensors as a loader of ours gives them."""

    def __init__(self, count: int, size: int, as_tensor: bool):
        generator = np.random.default_rng(0)
        self.count, self.transform, self.as_tensor = count, None, as_tensor
        self.pixels = [generator.integers(0, 256, (size, size, 3), dtype=np.uint8) for _ in range(64)]
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
        self.tensors = (
            [(torch.from_numpy(pixels).permute(2, 0, 1).float() / 255 - mean) / std for pixels in self.pixels]
            if as_tensor
            else []
        )

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple:
        if self.as_tensor:
            return self.tensors[index % 64], index % 1000
        picture = Image.fromarray(self.pixels[index % 64])
        return (self.transform(picture) if self.transform else picture), index % 1000


class Both:
    """The two trainings; each keeps its model from round to round."""

    def __init__(
        self,
        name: str,
        size: int,
        batch: int,
        steps: int,
        warm: int,
        device: str,
        compiled: bool,
        workers: int,
    ):
        self.size, self.batch, self.steps, self.warm, self.device, self.workers = (
            size,
            batch,
            steps,
            warm,
            device,
            workers,
        )
        self.wait = torch.cuda.synchronize if device == "cuda" else lambda: None
        torch.manual_seed(0)
        self.model = timm.create_model(name, num_classes=1000).to(device)
        self.module = ImageClassifier(name, num_classes=1000, lr=5e-4, label_smoothing=0.1, compile=compiled)
        if compiled:
            self.model.compile()

    def timm(self) -> float:  # seconds
        loader = create_loader(
            Pictures(self.steps * self.batch, self.size, False),
            (3, self.size, self.size),
            self.batch,
            is_training=True,
            no_aug=True,
            mean=MEAN,
            std=STD,
            num_workers=self.workers,
            use_prefetcher=self.device == "cuda",
            device=torch.device(self.device),
            persistent_workers=False,
            pin_memory=self.device == "cuda",
        )
        optimiser = create_optimizer_v2(self.model, opt="adamw", lr=5e-4, weight_decay=0.05)
        scheduler, _ = create_scheduler_v2(
            optimiser, sched="cosine", num_epochs=1, step_on_epochs=False, updates_per_epoch=self.steps
        )
        loss_function, losses, start = LabelSmoothingCrossEntropy(0.1), AverageMeter(), 0.0
        self.model.train()
        for step, (images, targets) in enumerate(loader, start=1):
            if self.device == "cpu":
                images, targets = images.to(self.device), targets.to(self.device)
            with torch.autocast(self.device, torch.bfloat16):
                loss = loss_function(self.model(images), targets)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            scheduler.step_update(num_updates=step)
            if step % 50 == 0:
                losses.update(loss.item(), images.size(0))
            if step == self.warm:
                self.wait()
                start = time.perf_counter()
        self.wait()
        return time.perf_counter() - start

    def ours(self) -> float:  # seconds
        clock = Clock(self.warm, self.wait)
        loader = DataLoader(
            Pictures(self.steps * self.batch, self.size, True),
            self.batch,
            shuffle=True,
            drop_last=True,
            num_workers=self.workers,
            pin_memory=self.device == "cuda",
        )
        with tempfile.TemporaryDirectory() as folder:
            os.environ["FSDL_RUN_DIR"] = folder
            try:
                trainer = Trainer(
                    max_epochs=1,
                    accelerator=self.device,
                    precision="bf16-mixed",
                    enable_checkpointing=False,
                    enable_model_summary=False,
                    callbacks=[clock],
                )
                trainer.fit(self.module, loader)
            finally:
                os.environ.pop("FSDL_RUN_DIR")
        return clock.seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--compile", action="store_true", help="torch.compile for both")
    parser.add_argument("--tiny", action="store_true", help="a tiny ViT on a CPU")
    options = parser.parse_args()
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    if not options.tiny and not torch.cuda.is_available():
        raise SystemExit("there is no GPU here; --tiny runs the same code on a CPU")
    device, name, size = ("cpu", "test_vit", 160) if options.tiny else ("cuda", "vit_base_patch16_224", 224)
    batch, steps, warm, workers = (
        (8, 10, 3, 0) if options.tiny else (options.batch, options.steps, options.steps // 3, options.workers)
    )
    both = Both(name, size, batch, steps, warm, device, options.compile, workers)
    times = measure({"timm's loop": both.timm, "fsdl_dev": both.ours}, options.rounds, rotate=True)
    flops = count_batch(
        meta_twin(both.model), torch.empty(1, 3, size, size), lambda model, images: model(images).sum()
    ).total
    gpu = find_gpu(torch.cuda.get_device_name()) if device == "cuda" else None
    print(
        f"{name}, {batch} images of {size} × {size} a step, {flops / 1e9:.4g} GFLOPs an image, forward and"
        " backward"
    )
    for who, seconds in times.items():
        rate = (steps - warm) * batch / statistics.median(seconds)
        print(
            f"{who:<12} {rate:10,.1f} images/s"
            + (f"   {rate * flops / gpu.flops:.1%} of {gpu.flops / 1e12:.4g} TFLOP/s" if gpu else "")
        )
    ratio = statistics.median(theirs / mine for theirs, mine in zip(times["timm's loop"], times["fsdl_dev"]))
    print(f"fsdl_dev : timm's loop {ratio:.4f} (median of the rounds' ratios; aim: at least 1)")


if __name__ == "__main__":
    main()
