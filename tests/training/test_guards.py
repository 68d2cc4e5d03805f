"""A NaN in a loss, steps that train nothing, bad samples and memory that runs out: in several processes and
through the package's Trainer.
"""

import os
import warnings
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from choices import first_of_all
from ranks import run_ranks
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fsdl_dev.core.errors import FsdlError
from fsdl_dev.core.events import read_events
from fsdl_dev.parallel.sharding import local_tensor
from fsdl_dev.train.guards.loss import LossError, LossGuard
from fsdl_dev.train.trainer import Trainer

QUIET = {
    "accelerator": "cpu",
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "use_distributed_sampler": False,
}


class Net(pl.LightningModule):
    "Two layers, momentum, weight decay and a schedule: everything that a step changes."

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

    def training_step(self, batch: list, index: int) -> torch.Tensor:
        return (self.layers(batch[0]) - batch[0].sum(1, keepdim=True)).square().mean()

    def configure_optimizers(self) -> dict:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.02)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {
                "scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99),
                "interval": "step",
            },
        }


def weights(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([local_tensor(parameter).flatten() for parameter in module.parameters()])


def points(*without: int) -> torch.Tensor:
    "Ten batches of four points, without some of them."
    data = torch.randn(10, 4, 4, generator=torch.Generator().manual_seed(1))
    return torch.cat([data[number] for number in range(10) if number not in without])


def fit(data: torch.Tensor, batch_size: int = 4, epochs: int = 1, **settings) -> tuple[Net, Trainer]:
    module = Net()
    trainer = Trainer(max_epochs=epochs, **{**QUIET, **settings})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module, DataLoader(TensorDataset(data), batch_size=batch_size))
    return module, trainer


@pytest.fixture
def run_dir(tmp_path, monkeypatch) -> Path:
    "As if inside a run."
    monkeypatch.setenv("FSDL_RUN_DIR", str(tmp_path))
    return tmp_path


def notes(folder: Path) -> list[dict]:
    return [event for event in read_events(folder / "events") if event["kind"] == "note"]


# --- a loss that is no number
# ---------------------------------------------------------------------------------


def test_a_run_stops_at_nan_and_saves_the_weights_from_before(run_dir):
    data = points()
    data[24:28] = float("nan")
    with pytest.raises(LossError, match="NaN or infinite") as caught:
        fit(data)
    assert "epoch 0, batch 6 of the epoch, step 6, samples 24, 25, 26, 27" in caught.value.where
    saved = torch.load(run_dir / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    expected, _ = fit(points()[:24], enable_checkpointing=False)
    assert torch.equal(torch.cat([value.flatten() for value in saved.values()]), weights(expected)), (
        "the weights before the bad step"
    )


def test_no_checkpoint_ever_holds_a_nan_though_the_guard_looks_late(run_dir):
    from fsdl_dev.train.checkpoints.one_file import RunCheckpoint

    data = points()
    data[24:28] = float("nan")
    saves = RunCheckpoint(every_n_train_steps=1, save_top_k=-1)
    with pytest.raises(LossError, match="NaN or infinite") as caught:
        fit(data, loss_guard=LossGuard(lag=5), callbacks=[saves])
    assert "epoch 0, batch 6 of the epoch" in caught.value.where
    files = list((run_dir / "checkpoints").glob("*.ckpt"))
    assert len(files) >= 6
    for file in files:
        assert all(
            torch.isfinite(value).all()
            for value in torch.load(file, weights_only=True)["state_dict"].values()
        ), file.name


def test_a_spike_stops_the_training_when_asked_for():
    data = points().repeat(6, 1)
    data[160:164] *= 1000
    with pytest.raises(LossError, match="a spike above") as caught:
        fit(data, loss_guard=LossGuard(spike=10))
    assert "batch 40 of the epoch, step 40, samples 160, 161, 162, 163" in caught.value.where


@pytest.mark.parametrize("lag", [3, 100])
def test_a_nan_that_is_read_late_stops_the_training_before_its_validation(lag):
    seen = []

    class Validates(Net):
        def validation_step(self, batch: list, index: int) -> None:
            seen.append(self.trainer.sanity_checking)

    data = points()
    data[36:] = float("nan")  # the last batch
    loader = DataLoader(TensorDataset(data), batch_size=4)
    trainer = Trainer(max_epochs=1, loss_guard=LossGuard(lag=lag), num_sanity_val_steps=0, **QUIET)
    with pytest.raises(LossError) as caught:
        trainer.fit(Validates(), loader, DataLoader(TensorDataset(points()), batch_size=4))
    assert "batch 9 of the epoch, step 9" in caught.value.where and not seen


def test_an_unknown_loss_guard_is_refused():
    with pytest.raises(FsdlError, match="Unknown loss_guard 'rewind'"):
        Trainer(**QUIET, loss_guard="rewind")


def test_a_gradient_that_is_no_number_is_seen_before_the_weights_have_it():
    class Root(Net):
        def training_step(self, batch: list, index: int) -> torch.Tensor:
            loss = super().training_step(batch, index)
            return (
                loss + (self.layers[0].weight.sum() * 0).abs().sqrt() if index == 5 else loss
            )  # sqrt'(0) is infinite, times 0 is NaN

    module = Root()
    with pytest.raises(LossError, match="The loss is finite, and a gradient is NaN"):
        Trainer(max_epochs=1, **QUIET, loss_guard="stop").fit(
            module, DataLoader(TensorDataset(points()), batch_size=4)
        )
    expected, _ = fit(points()[:20])
    assert torch.equal(weights(module), weights(expected))


def _in_ranks(layout: dict, bad: dict[int, list[int]], lag: int | None) -> tuple[str, str]:
    "One rank's part: its half of each batch, in which it may find a NaN. Returns the error that ends it."
    rank = int(os.environ["RANK"])
    data = points().view(-1, 4, 4)[:, rank * 2 : rank * 2 + 2].clone()
    data[bad.get(rank, [])] = float("nan")
    try:
        fit(data.reshape(-1, 4), batch_size=2, loss_guard=LossGuard(lag=lag), epochs=2, **layout)
    except LossError as error:
        return error.what, error.where
    return "", ""


@pytest.mark.parametrize(
    ("layout", "lag"),
    first_of_all([({}, 3), ({"strategy": "fsdp=2"}, None)], [({}, None), ({"strategy": "zero1=2"}, None)]),
    ids=["ddp, looked at late", "fsdp", "ddp", "zero1"],
)
def test_one_rank_finds_a_nan_and_all_stop(layout, lag):
    for what, where in run_ranks(_in_ranks, 2, layout, {1: [4]}, lag):
        assert "in rank 1" in what and "epoch 0, batch 4 of the epoch, step 4" in where


class Beside(Net):
    """In rank 1 the loss of batch 4 is NaN, and its gradient is a number: no other rank can see it in the
    gradients.
    """

    def training_step(self, batch: list, index: int) -> torch.Tensor:
        loss = super().training_step(batch, index)
        return loss + float("nan") if os.environ["RANK"] == "1" and index == 4 else loss


def _beside() -> tuple[str, str]:
    try:
        Trainer(max_epochs=1, loss_guard="stop", strategy="ddp", **QUIET).fit(
            Beside(), DataLoader(TensorDataset(points()), batch_size=2)
        )
    except FsdlError as error:
        return error.what, error.where
    return "", ""


def test_a_nan_that_the_gradients_do_not_show_stops_all_ranks_a_step_later():
    for what, where in run_ranks(_beside, 2):
        assert (
            "NaN or infinite in rank 1" in what
            and "spoilt" not in what
            and "epoch 0, batch 4 of the epoch, step 4" in where
        )


# --- steps and samples
# ------------------------------------------------------------------------------------------


class Silent(Net):
    def training_step(self, batch: list, index: int) -> None:
        super().training_step(batch, index)


def _silent() -> str:
    try:
        Trainer(max_epochs=1, **QUIET).fit(Silent(), DataLoader(TensorDataset(points()), batch_size=2))
    except FsdlError as error:
        return str(error)
    return ""


def test_a_step_without_a_loss(run_dir):
    assert "returned None in all of the first 20 steps" in _silent() and "Silent.training_step" in _silent()
    assert any("returned None at batch 0 of epoch 0" in note["text"] for note in notes(run_dir))


def test_a_step_without_a_loss_in_several_processes():
    assert all("of several processes none can leave a step out" in said for said in run_ranks(_silent, 2))


class Broken(Dataset):
    "Sample 7 cannot be read."

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[torch.Tensor]:
        if index == 7:
            raise KeyError("label")
        return (torch.ones(4) * index,)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_sample_is_named(run_dir, workers):
    with pytest.raises(FsdlError) as caught:
        Trainer(max_epochs=2, **QUIET).fit(Net(), DataLoader(Broken(), batch_size=4, num_workers=workers))
    assert (
        "Sample 7 of Broken (24 samples) cannot be read" in caught.value.what
        and "KeyError: 'label'" in caught.value.what
    )
    assert (
        "epoch 0" in caught.value.what
        and "in __getitem__" in caught.value.where
        and caught.value.fix == "look at it: dataset[7]"
    )


# --- memory
# -------------------------------------------------------------------------------------------------------


class Wide(pl.LightningModule):
    "Few parameters, large activations, double precision."

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weights = torch.nn.Parameter(torch.randn(50_000, dtype=torch.float64) * 0.1)
        self.blocks = torch.nn.Sequential(*(torch.nn.Tanh() for _ in range(6)))

    def training_step(self, batch: dict, index: int) -> torch.Tensor:
        return (self.blocks(batch["x"] * self.weights).mean(1) - batch["y"]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 1.0)


def _short_of_memory(megabytes: dict[int, int]) -> str:
    "One rank's part of each batch, and an address space that really ends. Returns the error."
    import resource

    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    x = torch.randn(72, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))[rank::world]
    size = 16 // world
    small = [[0], [1]]  # at the first steps torch loads code and starts threads, whose stacks would count
    batches = small + [list(range(start, start + size)) for start in range(2, len(x) - size, size)]

    class Limit(pl.Callback):
        def on_train_batch_start(
            self, trainer: pl.Trainer, module: pl.LightningModule, batch: dict, index: int
        ) -> None:
            if index == len(small) and trainer.current_epoch == 0 and megabytes.get(rank):
                now = (
                    int(
                        next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[
                            1
                        ]
                    )
                    * 1024
                )
                resource.setrlimit(
                    resource.RLIMIT_AS, (now + megabytes[rank] * 2**20, resource.RLIM_INFINITY)
                )

    module = Wide()
    trainer = Trainer(max_epochs=2, **QUIET, callbacks=[Limit()])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            trainer.fit(
                module, DataLoader([{"x": one, "y": one.sum() * 2} for one in x], batch_sampler=batches)
            )
        except FsdlError as error:
            return str(error)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return ""


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="limits the address space as Linux counts it"
)
def test_out_of_memory_says_what_was_asked_and_what_would_do():
    (said,) = run_ranks(_short_of_memory, 1, {0: 25})
    assert (
        "Out of memory in the forward pass of a batch of 16 samples: 6.4 MB asked" in said
        and "block blocks." in said
        and "rank 0" in said
    )
    assert "batch_size=8 with accumulate_grad_batches=2 makes the same step" in said
