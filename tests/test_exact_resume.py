"""A training that is stopped at any step and resumed equals the uninterrupted one to the last bit: losses,
final weights, on CPU.
"""

import hashlib
import multiprocessing
import os
import random
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from ranks import run_ranks

EPOCHS, BATCH, SAMPLES = (
    2,
    4,
    44,
)  # 11 batches in one process, the last incomplete one dropped or not by the loader


class Noisy(torch.utils.data.Dataset):
    """Examples with something random about each, from all three generators."""

    def __init__(self, seeded: bool):
        self.seeded = seeded
        self.values = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int):
        from fsdl_dev.data.loaders import item_randomness

        with item_randomness(index):
            noise = torch.rand(6) + random.random() + np.random.rand()
        return self.values[index] + 0.1 * noise.float(), self.values[index].sum()


def make_loader(kind: str, workers: int):
    """One of the loaders that a training may have."""
    from fsdl_dev.data.loaders import make_loader as ours

    settings = {"batch_size": BATCH, "num_workers": workers}
    if kind == "ours":
        return ours(Noisy(seeded=True), BATCH, name="train", train=True, num_workers=workers)
    if kind == "plain":
        return torch.utils.data.DataLoader(Noisy(seeded=False), shuffle=True, **settings)
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(
        torch.utils.data.TensorDataset(Noisy(False).values, Noisy(False).values.sum(1)),
        shuffle=True,
        **settings,
    )


def make_module():
    import pytorch_lightning as pl

    from fsdl_dev.train.optimisers import adamw_with_warmup

    class Net(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(
                torch.nn.Linear(6, 16),
                torch.nn.BatchNorm1d(16),
                torch.nn.ReLU(),
                torch.nn.Dropout(0.3),
                torch.nn.Linear(16, 1),
            )

        def training_step(self, batch, index):
            return (self.layers(batch[0]).squeeze(1) - batch[1]).square().mean()

        def validation_step(self, batch, index):
            self.log(
                "val_loss", (self.layers(batch[0]).squeeze(1) - batch[1]).square().mean(), sync_dist=True
            )

        def configure_optimizers(self):
            return adamw_with_warmup(self, lr=0.05, warmup=3)

    return Net()


class Stop(Exception):
    """The end of a process, as far as this test is concerned."""


def train(
    path: Path | None = None,
    stop_at: int | None = None,
    resume: Path | None = None,
    loader: str = "ours",
    workers: int = 0,
    accumulate: int = 1,
    ema: float | None = None,
    layout: str | None = None,
    by: str = "save",
    seed: int = 0,
) -> tuple[list[str], str]:  # each loss, and a digest of the final weights
    """One training in this rank; stopped after so many batches, or to its end."""
    import pytorch_lightning as pl
    from torch.distributed.tensor import DTensor

    from fsdl_dev.core.layout import read_layout
    from fsdl_dev.parallel.strategy import strategy_for
    from fsdl_dev.train.trainer import Trainer

    class Watch(pl.callbacks.Checkpoint):  # comes last, as what saves does
        def __init__(self):
            self.losses, self.batches = [], 0

        def on_train_batch_end(self, trainer, module, outputs, *ignored):
            self.losses.append(float(outputs["loss"] * trainer.accumulate_grad_batches).hex())
            self.batches += 1
            if self.batches == stop_at and by == "save":
                trainer.save_checkpoint(path)
                raise Stop
            if self.batches == stop_at:
                os.kill(os.getpid(), signal.SIGTERM)

    world = int(os.environ["WORLD_SIZE"])
    torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)
    watch, settings = Watch(), {}
    if layout is not None:
        settings["strategy"] = strategy_for(read_layout(layout, world))
    module = make_module()
    torch.manual_seed(100 * seed + int(os.environ["RANK"]))  # dropout differs between processes
    trainer = Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        enable_model_summary=False,
        enable_progress_bar=False,
        callbacks=[watch],
        accumulate_grad_batches=accumulate,
        ema=ema,
        num_sanity_val_steps=1,
        loss_guard="off",
        **settings,
    )
    validation = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(Noisy(False).values[:8], Noisy(False).values[:8].sum(1)), 4
    )
    try:
        trainer.fit(module, make_loader(loader, workers), validation, ckpt_path=resume, weights_only=True)
    except Stop:
        return watch.losses, ""
    except (SystemExit, pl.utilities.exceptions.SIGTERMException):
        return watch.losses, "stopped"
    weights = [
        tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        for tensor in module.state_dict().values()
    ]
    return (
        watch.losses,
        hashlib.sha256(
            b"".join(tensor.detach().contiguous().numpy().tobytes() for tensor in weights)
        ).hexdigest(),
    )


def every_stop(folder: str, name: str, stops: list[int], settings: dict) -> list[str]:  # what differs
    """In one rank: the whole training, and one stopped and resumed at each of the batches."""
    multiprocessing.current_process()._config["daemon"] = (
        False  # a rank of a test may have workers of its own
    )
    whole, weights = train(**settings)
    found = []
    for stop in stops:
        path = Path(folder) / name.format(stop)
        before, _ = train(path, stop, **settings)
        after, resumed = train(
            resume=path, **{**settings, "seed": 1}
        )  # another process starts with other random numbers
        if before != whole[:stop]:
            found.append(f"stop {stop}: the training itself does not repeat")
        if after != whole[stop:]:
            same = next(
                (number for number, (one, two) in enumerate(zip(after, whole[stop:])) if one != two),
                min(len(after), len(whole) - stop),
            )
            found.append(
                f"stop {stop}: loss {stop + same} differs ({len(after)} of {len(whole) - stop} losses)"
            )
        elif resumed != weights:
            found.append(f"stop {stop}: the final weights differ")
    return found


ONE = {
    "ours": {"loader": "ours"},
    "ours with workers": {"loader": "ours", "workers": 2},
    "any DataLoader": {"loader": "plain"},
    "any DataLoader with workers": {"loader": "plain", "workers": 2},
    "torchdata": {"loader": "torchdata", "workers": 1},
    "accumulation": {"loader": "ours", "accumulate": 3},
    "an average of the weights": {"loader": "ours", "ema": 0.9},
    "all at once": {"loader": "ours", "workers": 1, "accumulate": 2, "ema": 0.9},
}


def forms(cases: dict, *as_folders: str) -> list:
    """Each case with the form of its checkpoints: all of them as files, some as folders too; with LONG=1 all as
    both.
    """
    folders = cases if os.environ.get("LONG") else as_folders
    return [pytest.param(case, "{:02d}.ckpt", id=f"{case}-file") for case in cases] + [
        pytest.param(case, "step{:08d}", id=f"{case}-folder") for case in folders
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("case", "name"), forms(ONE, "ours", "all at once"))
def test_one_process(tmp_path, case, name):
    settings = ONE[case]
    batches = EPOCHS * (SAMPLES // BATCH)
    every = 1 if os.environ.get("LONG") else 5
    stops = (
        list(range(1, batches, every)) if case == "ours" else [5, 15] if case == "torchdata" else [4, 11, 15]
    )
    assert run_ranks(every_stop, 1, str(tmp_path), name, stops, settings)[0] == []


TWO = {
    "ddp": {"layout": "ddp=2"},
    "ddp, any DataLoader": {"layout": "ddp=2", "loader": "plain"},
    "ddp, accumulation, average": {"layout": "ddp=2", "accumulate": 2, "ema": 0.9},
    "fsdp": {"layout": "fsdp=2"},
    "fsdp, any DataLoader, accumulation": {"layout": "fsdp=2", "loader": "plain", "accumulate": 3},
    "zero1": {"layout": "zero1=2"},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "name"),
    [
        form
        for form in forms(TWO, "ddp, any DataLoader", "fsdp", "fsdp, any DataLoader, accumulation", "zero1")
        if form.values[0].startswith("ddp") or form.values[1] == "step{:08d}"
    ],
)  # cut models are saved as folders
def test_two_processes(tmp_path, case, name):
    found = run_ranks(every_stop, 2, str(tmp_path), name, [2, 5, 8], TWO[case])
    assert found == [[], []]
