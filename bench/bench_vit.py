"""Images per second of a ViT-B/16: timm's training loop, beside ImageClassifier under our Trainer.

    python bench/bench_vit.py [--rounds 5] [--steps 60] [--batch 256] [--compile]   on a GPU, in bf16
    python bench/bench_vit.py --tiny                                        on a CPU, a tiny ViT

timm's train.py is not in its wheel; what `train.py --model vit_base_patch16_224 --amp --amp-dtype bfloat16
--opt adamw --smoothing 0.1 --no-aug` does in a step is written here with timm's create_model,
create_optimizer_v2, LabelSmoothingCrossEntropy and AverageMeter, its loss read every 50 steps. Both train
from the same loader: timm's create_loader over the same made-up pictures in memory, with its prefetcher,
which on a GPU copies uint8 pictures on a stream of its own and normalises them there. In this process and in
turns; another one begins each round. The first steps are not counted. The aim: at least timm's throughput.
"""

import argparse
import statistics

import numpy as np
import timm
import torch
from PIL import Image
from side_by_side import measure
from timm.data import create_loader
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import AverageMeter
from torch.utils.data import Dataset
from training import Clock, be_quiet, median_ratio, run_folder

from fsdl_dev.models.flops import count_batch, meta_twin
from fsdl_dev.planner.devices import find_gpu
from fsdl_dev.train.trainer import Trainer
from fsdl_dev.train.vision import ImageClassifier

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Pictures(Dataset):
    """Made-up pictures that rest in memory. timm's create_loader gives the transform."""

    def __init__(self, count: int, size: int):
        generator = np.random.default_rng(0)
        pixels = [generator.integers(0, 256, (size, size, 3), dtype=np.uint8) for _ in range(64)]
        self.count, self.transform, self.pictures = count, None, [Image.fromarray(one) for one in pixels]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple:
        return self.transform(self.pictures[index % 64]), index % 1000


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
        torch.manual_seed(0)
        self.model = timm.create_model(name, num_classes=1000).to(device)
        self.module = ImageClassifier(name, num_classes=1000, lr=5e-4, label_smoothing=0.1, compile=compiled)
        if compiled:
            self.model.compile()

    def clock(self) -> Clock:
        return Clock(self.warm - 1, self.steps - 1, self.device)

    def loader(self):
        on_gpu, pictures = self.device == "cuda", Pictures(self.steps * self.batch, self.size)
        normal = {"mean": MEAN, "std": STD, "num_workers": self.workers, "persistent_workers": False}
        there = {"pin_memory": on_gpu, "device": torch.device(self.device)}
        return create_loader(
            pictures, (3, self.size, self.size), self.batch, is_training=True, no_aug=True, **normal, **there
        )

    def timm(self) -> float:  # seconds
        optimiser = create_optimizer_v2(self.model, opt="adamw", lr=5e-4, weight_decay=0.05)
        scheduler, _ = create_scheduler_v2(
            optimiser, sched="cosine", num_epochs=1, step_on_epochs=False, updates_per_epoch=self.steps
        )
        loss_function, losses, clock = LabelSmoothingCrossEntropy(0.1), AverageMeter(), self.clock()
        self.model.train()
        for step, (images, targets) in enumerate(self.loader(), start=1):
            with torch.autocast(self.device, torch.bfloat16):
                loss = loss_function(self.model(images), targets)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            scheduler.step_update(num_updates=step)
            if step % 50 == 0:
                losses.update(loss.item(), images.size(0))
            clock.step(step - 1)
        return clock.seconds

    def ours(self) -> float:  # seconds
        clock, plain = self.clock(), {"enable_checkpointing": False, "enable_model_summary": False}
        with run_folder():
            trainer = Trainer(
                max_epochs=1, accelerator=self.device, precision="bf16-mixed", callbacks=[clock], **plain
            )
            trainer.fit(self.module, self.loader())
        return clock.seconds


def compare(rounds: int, steps: int, batch: int, workers: int, device: str, compiled: bool) -> dict:
    """Images per second and utilisation of each, and the ratio. On a CPU a tiny ViT, not compiled."""
    be_quiet()
    name, size = ("vit_base_patch16_224", 224) if device == "cuda" else ("test_vit", 160)
    both = Both(name, size, batch, steps, steps // 3, device, compiled and device == "cuda", workers)
    times = measure({"timm's loop": both.timm, "fsdl_dev": both.ours}, rounds, rotate=True)
    flops = count_batch(
        meta_twin(both.model), torch.empty(1, 3, size, size), lambda model, images: model(images).sum()
    ).total
    gpu = find_gpu(torch.cuda.get_device_name()) if device == "cuda" else None
    rates = {who: (steps - both.warm) * batch / statistics.median(seconds) for who, seconds in times.items()}
    return {
        "model": name,
        "size": size,
        "flops_per_image": flops,
        "peak": gpu.flops if gpu else None,
        "images_per_second": rates,
        "mfu": {who: rate * flops / gpu.flops for who, rate in rates.items()} if gpu else {},
        "ratio": median_ratio(*times.values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--compile", action="store_true", help="torch.compile for both")
    parser.add_argument("--tiny", action="store_true", help="a tiny ViT on a CPU")
    options = parser.parse_args()
    if not options.tiny and not torch.cuda.is_available():
        raise SystemExit("there is no GPU here; --tiny runs the same code on a CPU")
    steps, batch, workers, device = (
        (10, 8, 0, "cpu") if options.tiny else (options.steps, options.batch, options.workers, "cuda")
    )
    found = compare(options.rounds, steps, batch, workers, device, options.compile)
    pixels = f"{found['size']} × {found['size']}"
    print(
        f"{found['model']}, {batch} images of {pixels} a step, "
        f"{found['flops_per_image'] / 1e9:.4g} GFLOPs an image, forward and backward"
    )
    for who, rate in found["images_per_second"].items():
        print(
            f"{who:<12} {rate:10,.1f} images/s"
            + (f"   {found['mfu'][who]:.1%} of {found['peak'] / 1e12:.4g} TFLOP/s" if found["peak"] else "")
        )
    print(f"fsdl_dev : timm's loop {found['ratio']:.4f} (median of the rounds' ratios; aim: at least 1)")


if __name__ == "__main__":
    main()
