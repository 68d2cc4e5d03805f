"""A training that is stopped at any place and resumed equals the uninterrupted one to the last bit: losses,
epochs, steps, learning rates, validations, hooks and final weights, on CPU.
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


class Stream(torch.utils.data.IterableDataset):
    """Random examples, of a number that Lightning does not know."""

    def __iter__(self):
        values = Noisy(False).values
        for _ in range(SAMPLES):
            row = values[random.randrange(SAMPLES)]
            yield row + 0.1 * torch.rand(6), row.sum()


def make_loader(kind: str, workers: int):
    """One of the loaders that a training may have."""
    from fsdl_dev.data.loaders import make_loader as ours

    settings = {"batch_size": BATCH, "num_workers": workers}
    if kind == "ours":
        return ours(Noisy(seeded=True), BATCH, name="train", train=True, num_workers=workers)
    if kind == "plain":
        return torch.utils.data.DataLoader(Noisy(seeded=False), shuffle=True, **settings)
    if kind == "own generators":
        settings["generator"] = torch.Generator().manual_seed(7)
        return torch.utils.data.DataLoader(Noisy(seeded=False), shuffle=True, **settings)
    if kind == "no length":
        return torch.utils.data.DataLoader(Stream(), **settings)
    if kind == "two":  # the second begins again within the epoch
        return {"a": make_loader("plain", 0), "b": make_loader("ours", 0), "c": make_loader("short", 0)}
    if kind == "short":
        rows = torch.utils.data.Subset(Noisy(seeded=False), range(16))
        return torch.utils.data.DataLoader(rows, shuffle=True, **settings)
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(
        torch.utils.data.TensorDataset(Noisy(False).values, Noisy(False).values.sum(1)),
        shuffle=True,
        **settings,
    )


def make_module():
    import pytorch_lightning as pl
    import torchmetrics

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
            self.error = torchmetrics.MeanSquaredError()

        def training_step(self, batch, index):
            some = batch.values() if isinstance(batch, dict) else [batch]
            loss = sum((self.layers(one[0]).squeeze(1) - one[1]).square().mean() for one in some)
            self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=1)
            self.error(loss.detach(), torch.zeros(()))
            self.log("train_error", self.error, on_step=False, on_epoch=True)
            return loss

        def validation_step(self, batch, index):
            self.log(
                "val_loss", (self.layers(batch[0]).squeeze(1) - batch[1]).square().mean(), sync_dist=True
            )

        def configure_optimizers(self):
            return adamw_with_warmup(self, lr=0.05, warmup=3)

    return Net()


def by_plateau(module) -> dict:
    """A learning rate that falls after an epoch whose loss is not much less."""
    optimizer = torch.optim.SGD(module.parameters(), 0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.9)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"}}


class Stop(Exception):
    """The end of a process, as far as this test is concerned."""


def make_watch(path: Path | None, stop_at: int | None, by: str, hook: str, halt: int | None):  # noqa: C901  hooks
    """A callback that keeps what each hook sees, and stops the training after so many calls of one."""
    import pytorch_lightning as pl

    # comes last, as what saves does; where a signal stops it, the run's own checkpoint callback saves
    class Watch(pl.callbacks.Checkpoint if by == "save" else pl.Callback):
        def __init__(self):
            self.seen, self.calls = [], 0

        def see(self, trainer, name, *values):
            self.seen.append(f"{name} of epoch {trainer.current_epoch}, step {trainer.global_step}: {values}")
            if self.count(name) and by == "save":
                trainer.save_checkpoint(path)
                raise Stop

        def count(self, name):
            self.calls += name == hook
            now = name == hook and self.calls == stop_at
            if now and by == "signal":
                os.kill(os.getpid(), signal.SIGTERM)
            return now

        def on_train_batch_end(self, trainer, module, outputs, batch, index):
            loops, rate = trainer.fit_loop, trainer.optimizers[0].param_groups[0]["lr"]
            trainer.should_stop |= loops.total_batch_idx + 1 == halt
            loss = float(outputs["loss"] * trainer.accumulate_grad_batches).hex()
            self.see(trainer, "batch", index, loss, rate, loops.epoch_loop._batches_that_stepped)

        def on_validation_batch_end(self, trainer, *ignored):
            if by == "signal" and not trainer.sanity_checking:
                self.count("validation batch")

        def on_validation_end(self, trainer, module):
            if not trainer.sanity_checking:
                self.see(trainer, "validation", float(trainer.callback_metrics["val_loss"]).hex())

        def on_train_epoch_start(self, trainer, module):
            self.see(trainer, "epoch start")

        def on_train_epoch_end(self, trainer, module):
            seen = trainer.callback_metrics
            self.see(
                trainer, "epoch end", *(float(seen[name]).hex() for name in ("train_loss", "train_error"))
            )

    return Watch()


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
    hook: str = "batch",  # which of the hooks is counted for `stop_at`
    halt: int | None = None,  # the batch after which `should_stop` is set, as a Timer does
    plateau: bool = False,  # a schedule by the validation's loss
    seed: int = 0,
    **limits,  # of the Trainer: max_steps, max_time, ...
) -> tuple[list[str], str]:  # what each hook saw, and a digest of the final weights
    """One training in this rank; stopped after so many calls of a hook, or to its end."""
    import pytorch_lightning as pl
    from torch.distributed.tensor import DTensor

    from fsdl_dev.core.layout import read_layout
    from fsdl_dev.parallel.strategy import strategy_for
    from fsdl_dev.train.trainer import Trainer

    world = int(os.environ["WORLD_SIZE"])
    torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)
    watch, settings = make_watch(path, stop_at, by, hook, halt), {}
    if layout is not None:
        settings["strategy"] = strategy_for(read_layout(layout, world))
    module = make_module()
    if plateau:
        module.configure_optimizers = lambda: by_plateau(module)
    torch.manual_seed(100 * seed + int(os.environ["RANK"]))  # dropout differs between processes
    trainer = Trainer(
        **(limits or {"max_epochs": EPOCHS}),
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
        return watch.seen, ""
    except (SystemExit, pl.utilities.exceptions.SIGTERMException):
        return watch.seen, "stopped"
    weights = [
        tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        for tensor in module.state_dict().values()
    ]
    return (
        watch.seen,
        hashlib.sha256(
            b"".join(tensor.detach().contiguous().numpy().tobytes() for tensor in weights)
        ).hexdigest(),
    )


def every_stop(folder: str, name: str, stops: list, settings: dict) -> list[str]:  # what differs
    """In one rank: the whole training, and one stopped and resumed at each of the batches (a number), or of the
    calls of a hook (its name, and a number).
    """
    multiprocessing.current_process()._config["daemon"] = (
        False  # a rank of a test may have workers of its own
    )
    whole, weights = train(**settings)
    found = []
    for stop in stops:
        hook, number = ("batch", stop) if isinstance(stop, int) else stop
        path = Path(folder) / hook.replace(" ", "-") / name.format(number)
        before, _ = train(path, number, hook=hook, **settings)
        after, resumed = train(
            resume=path, **{**settings, "seed": 1}
        )  # another process starts with other random numbers
        if before != whole[: len(before)]:
            found.append(f"stop {stop}: the training itself does not repeat")
        rest = whole[len(before) :]
        if after != rest:
            pairs = zip([*after, "nothing"], [*rest, "nothing"])
            first = next((f"{one}, not {two}" for one, two in pairs if one != two), "")
            found.append(f"stop {stop}: {len(after)} of {len(rest)} hooks; {first}")
        elif resumed != weights:
            found.append(f"stop {stop}: the final weights differ")
    return found


def rows_of(folder: Path) -> list[str]:
    """The metrics in a run's events, each with its step."""
    from fsdl_dev.core.events import read_events

    events = [event for event in read_events(folder / "events") if event["kind"] == "metric"]
    return [f"{event['step']}: {name} {value}" for event in events for name, value in event["values"].items()]


def every_signal(folder: str, stops: list, settings: dict) -> list[str]:  # what differs
    """In one rank: a run, and one that SIGTERM reaches in each of the hooks, and that is resumed in another run."""

    def run(name: str, **more) -> tuple[list[str], str, list[str]]:
        os.environ["FSDL_RUN_DIR"] = str(Path(folder) / name)
        Path(folder, name).mkdir()
        seen, end = train(by="signal", **{**settings, **more})
        return seen, end, rows_of(Path(folder) / name)

    multiprocessing.current_process()._config["daemon"] = False
    whole, weights, rows = run("whole")
    found = []
    for number, (hook, times) in enumerate(stops):
        before, end, first = run(f"{number}-stopped", hook=hook, stop_at=times)
        last = Path(folder, f"{number}-stopped", "checkpoints", "last.ckpt")
        after, resumed, second = run(f"{number}-resumed", resume=last, seed=1)
        for what, one, other in (
            ("it was not stopped", end, "stopped"),
            ("hooks", before + after, whole),
            ("the final weights", resumed, weights),
            ("rows", sorted(first + second), sorted(rows)),
        ):
            if one != other:
                found.append(f"{hook} {times}: {what}: {[x for x in one if x not in other][:3] or len(one)}")
    return found


ONE = {
    "ours": {"loader": "ours"},
    "ours with workers": {"loader": "ours", "workers": 2},
    "any DataLoader": {"loader": "plain"},
    "any DataLoader with workers": {"loader": "plain", "workers": 2},
    "torchdata": {"loader": "torchdata", "workers": 1},
    "own generators": {"loader": "own generators"},
    "no length": {"loader": "no length"},
    "two loaders": {"loader": "two"},
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


@pytest.mark.tier(
    "long",
    "any DataLoader with workers-file",
    "ours with workers-file",
    "any DataLoader with workers-*",
    "torchdata-file",
    "own generators-file",
    "no length-file",
    "an average of the weights-file",
    "ours-folder",
    "all at once-*",
)
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


STARTS = {
    "double precision": {"precision": "64-true"},
    "own generators": {"loader": "own generators"},
    "torchdata": {"loader": "torchdata"},
    "loaders made anew": {"reload_dataloaders_every_n_epochs": 1, "loader": "plain"},
}


@pytest.mark.tier("long", "double*", "torchdata", "loaders*")
@pytest.mark.slow
@pytest.mark.parametrize("case", STARTS)
def test_the_next_epoch(tmp_path, case):
    settings = {"max_epochs": 2, **STARTS[case]}
    assert run_ranks(every_stop, 1, str(tmp_path), "{:02d}.ckpt", [("epoch end", 1)], settings)[0] == []


HOOKS = [("batch", 4), ("batch", 11), ("validation", 1), ("epoch end", 1)]
PLACES = {
    "max_epochs": ({"max_epochs": 2}, HOOKS),
    "max_steps": ({"max_steps": 17}, HOOKS),
    "max_steps, accumulation": ({"max_steps": 7, "accumulate": 3}, HOOKS),
    "max_time": ({"max_time": "01:00:00:00", "halt": 15}, HOOKS),
    "max_steps, any DataLoader": ({"max_steps": 17, "loader": "plain"}, HOOKS),
    "validation within an epoch": (
        {"max_steps": 17, "val_check_interval": 5},
        [("batch", 5), ("batch", 10), ("validation", 1), ("validation", 2), ("epoch end", 1)],
    ),
    "no validation": ({"max_steps": 17, "limit_val_batches": 0}, [("batch", 11), ("epoch end", 1)]),
    "a schedule by the validation": (
        {"max_epochs": 3, "plateau": True},
        [("batch", 11), *HOOKS[2:], ("batch", 22)],
    ),
}


@pytest.mark.tier(
    "long", "max_epochs-file", "max_steps, *", "max_time-file", "no validation-file", "max_steps-folder"
)
@pytest.mark.slow
@pytest.mark.parametrize(("case", "name"), forms(PLACES, "max_steps"))
def test_every_hook_and_limit(tmp_path, case, name):
    settings, stops = PLACES[case]
    assert run_ranks(every_stop, 1, str(tmp_path), name, stops, settings)[0] == []


def test_an_end_of_epoch_with_max_steps(tmp_path):
    settings, stops = {"max_steps": 13}, [("epoch end", 1), ("batch", 11)]
    assert run_ranks(every_stop, 1, str(tmp_path), "{:02d}.ckpt", stops, settings)[0] == []


SIGNALS = {
    "any DataLoader": ({"loader": "plain"}, [11, 22]),
    "an average of the weights": ({"ema": 0.9, "accumulate": 2}, [11]),
    "validation within an epoch": ({"loader": "plain", "val_check_interval": 5}, [10]),
    "validation every other epoch": ({"loader": "plain", "check_val_every_n_epoch": 2}, [22]),
    "saves at an interval": ({"loader": "plain", "checkpoint_every": 11}, [22]),
}


@pytest.mark.tier("long", "an average*", "validation every*", "saves at*")
@pytest.mark.slow
@pytest.mark.parametrize("case", SIGNALS)
def test_a_signal_around_a_validation(tmp_path, case):
    settings, batches = SIGNALS[case]
    stops = [*(("batch", number) for number in batches), ("validation batch", 1), ("validation", 1)]
    found = run_ranks(every_signal, 1, str(tmp_path), stops, {"max_epochs": 2, **settings})
    assert found[0] == []


def test_a_signal_in_the_last_validation(tmp_path):
    stops = [("validation batch", 1), ("validation", 2)]
    assert run_ranks(every_signal, 1, str(tmp_path), stops, {"max_epochs": 2, "loader": "plain"})[0] == []


def longer(folder: str) -> list[str]:
    """In one rank: a training that `max_steps` ended within its epoch, and one that goes on from there."""
    schedule = {"plateau": True}  # it knows nothing of the number of steps
    whole, weights = train(max_steps=15, **schedule)
    train(path := Path(folder) / "last.ckpt", 1, hook="epoch end", max_steps=6, **schedule)
    after, resumed = train(resume=path, max_steps=15, seed=1, **schedule)
    return [] if (after, resumed) == (whole[7:], weights) else [f"{after[:2]}, not {whole[7:9]}"]


@pytest.mark.slow
def test_more_steps_continue_the_epoch(tmp_path):
    assert run_ranks(longer, 1, str(tmp_path))[0] == []


TWO = {
    "ddp": {"layout": "ddp=2"},
    "ddp, any DataLoader": {"layout": "ddp=2", "loader": "plain"},
    "ddp, accumulation, average": {"layout": "ddp=2", "accumulate": 2, "ema": 0.9},
    "fsdp": {"layout": "fsdp=2"},
    "fsdp, any DataLoader, accumulation": {"layout": "fsdp=2", "loader": "plain", "accumulate": 3},
    "zero1": {"layout": "zero1=2"},
    "ddp, max_steps": {"layout": "ddp=2", "max_steps": 9},
    "ddp, max_time": {"layout": "ddp=2", "max_time": "01:00:00:00", "halt": 9},
}  # fmt: skip


@pytest.mark.tier(
    "long", "ddp, any DataLoader-*", "ddp, accumulation*", "ddp, max_*", "fsdp, any*", "zero1-folder"
)
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
    stops = [2, ("epoch end", 1)] if "max_" in case else [2, 5, 8]
    found = run_ranks(every_stop, 2, str(tmp_path), name, stops, TWO[case])
    assert found == [[], []]


@pytest.mark.slow
def test_four_processes_add_up_gradients_in_the_same_order(tmp_path):
    """With three processes or more the order in which DDP sums decides about the last bit."""
    found = run_ranks(every_stop, 4, str(tmp_path), "step{:08d}.ckpt", [1, 2, 4], {"layout": "ddp=4"})
    assert found == [[]] * 4


def best_of(folder: str) -> list[str]:
    """In one rank: the checkpoints of a run whose newest save was in its epoch's last batch."""
    os.environ["FSDL_RUN_DIR"] = folder
    train(by="signal", max_epochs=1, checkpoint_every=11)
    return sorted(file.name for file in Path(folder, "checkpoints").iterdir())


def test_a_save_in_the_last_batch_leaves_the_best(tmp_path):
    assert run_ranks(best_of, 1, str(tmp_path))[0] == ["epoch01-step11.ckpt", "last.ckpt"]
