"""The same cell under every strategy: `Trainer(strategy=...)` on real processes against one process;
checkpoints, metrics, callbacks, bad input.
"""

import contextlib
import functools
import io
import math
import os
import signal
import subprocess
import sys

import pytest
import pytorch_lightning as pl
import torch
from choices import first_of_all
from ranks import RankFailure, run_ranks
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import SumMetric

from fsdl_dev.core.errors import FsdlError
from fsdl_dev.core.events import read_events
from fsdl_dev.core.layout import Layout, read_layout
from fsdl_dev.train.text import CausalLM
from fsdl_dev.train.trainer import Trainer
from fsdl_dev.train.vision import ImageClassifier

LLAMA = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 96,
    "max_position_embeddings": 64,
}
GPT2 = {
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "vocab_size": 96,
    "n_positions": 32,
    "attn_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "resid_pdrop": 0.0,
}
VIT = {"img_size": 16, "patch_size": 4, "depth": 2, "embed_dim": 64, "num_heads": 4, "in_chans": 1}
QUIET = {
    "accelerator": "cpu",
    "enable_model_summary": False,
    "enable_progress_bar": False,
    "log_every_n_steps": 1,
}


class Rows(torch.utils.data.Dataset):
    "Token rows as the text data module gives them."

    def __init__(self, count: int):
        self.rows = torch.randint(0, 96, (count, 16), generator=torch.Generator().manual_seed(3))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict:
        return {"input_ids": self.rows[index]}


class Plain(pl.LightningModule):
    "A module that knows nothing of parallelism: blocks, a head, and a parameter of its own."

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.Sequential(
            *[torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True) for _ in range(2)]
        )
        self.head = torch.nn.Linear(16, 1)
        self.scale = torch.nn.Parameter(torch.ones(()))
        self.seen = SumMetric()

    def step(self, batch):
        return (self.head(self.blocks(batch[0])) * self.scale).square().mean()

    def training_step(self, batch, index):
        loss = self.step(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.seen(batch[0].shape[0])
        self.log("val_loss", self.step(batch), sync_dist=True)
        self.log("val_rows", float(batch[0].shape[0]), reduce_fx="sum", sync_dist=True)
        self.log("val_seen", self.seen)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 1e-2)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {
                "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5),
                "interval": "step",
            },
        }


def make(kind: str) -> tuple[pl.LightningModule, torch.utils.data.Dataset]:
    "A module with the weights of seed 0, and its data."
    torch.manual_seed(0)
    if kind == "llama":
        return CausalLM("llama", model_settings={"config": LLAMA}, lr=1e-2), Rows(32)
    if kind == "gpt2":
        return CausalLM("gpt2", model_settings={"config": GPT2}, lr=1e-2), Rows(32)
    generator = torch.Generator().manual_seed(4)
    if kind == "vit":
        images, labels = (
            torch.randn(32, 1, 16, 16, generator=generator),
            torch.randint(0, 10, (32,), generator=generator),
        )
        return ImageClassifier("vit_tiny_patch16_224", model_settings=VIT, lr=1e-2), TensorDataset(
            images, labels
        )
    return Plain(), TensorDataset(torch.randn(32, 5, 16, generator=generator))


class Record(pl.Callback):
    "The loss of every step, the mean over the processes that read different samples."

    def __init__(self, readers: int):
        self.losses, self.readers = [], readers

    def on_train_batch_end(self, trainer, module, outputs, *ignored):
        loss = outputs["loss"].detach().clone()
        if trainer.world_size > 1:
            loss = trainer.strategy.reduce(loss)
        self.losses.append(loss.item())


def whole(module: torch.nn.Module) -> dict:
    "All weights, put together."
    return {
        name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()
        for name, value in module.state_dict().items()
    }


class Halt(pl.Callback):
    "Stops after the first epoch; the schedule is that of the whole training."

    def on_train_epoch_end(self, trainer, module):
        trainer.should_stop = True


def fit(
    kind: str,
    strategy: object,
    world: int = 1,
    readers: int = 1,
    resume: str | None = None,
    save: str | None = None,
    **settings,
) -> dict:
    "A training of two epochs of four steps with our Trainer, as a cell would have it."
    module, data = make(kind)
    record = Record(readers)
    callbacks = [record, Halt()] if save else [record]
    settings = {"max_epochs": 2, "gradient_clip_val": 0.5, **QUIET, **settings}
    trainer = (
        Trainer(strategy=strategy, callbacks=callbacks, **settings)
        if strategy
        else Trainer(callbacks=callbacks, **settings)
    )
    loader = DataLoader(data, batch_size=8 // readers)
    trainer.fit(module, loader, DataLoader(data, batch_size=8 // readers), ckpt_path=resume)
    if save:
        trainer.save_checkpoint(save)
    metrics = {name: value.item() for name, value in trainer.callback_metrics.items()}
    return {
        "losses": record.losses,
        "weights": whole(module),
        "metrics": metrics,
        "strategy": type(trainer.strategy).__name__,
        "steps": trainer.global_step,
    }


def call(kind: str, strategy: object, world: int, readers: int, settings: dict) -> dict:
    return fit(kind, strategy, world, readers, **settings)


@functools.cache
def alone(kind: str) -> dict:
    torch.set_num_threads(1)
    return fit(kind, None)


def assert_same(results: list[dict], one: dict, tolerance: float = 5e-5, weights: float = 1e-3) -> None:
    for result in results:
        assert result["losses"] == pytest.approx(one["losses"], abs=tolerance)
        assert result["metrics"]["val_loss"] == pytest.approx(one["metrics"]["val_loss"], abs=tolerance * 4)
        worst = max(
            (result["weights"][name] - one["weights"][name]).abs().max().item() for name in one["weights"]
        )
        assert result["weights"].keys() == one["weights"].keys() and worst < weights, worst


@pytest.mark.tier("long", "gpt2-fsdp=2 tp=2-4", "vit-ddp=2 tp=2-4")
@pytest.mark.parametrize("kind, strategy, world", first_of_all([
    ("llama", "ddp", 2), ("llama", "zero2", 2), ("llama", "tp", 2), ("gpt2", "fsdp=2 tp=2", 4),
    ("vit", "fsdp recompute", 2), ("plain", "zero1", 2), ("plain", None, 2),
], [
    ("llama", "zero1", 2), ("llama", "fsdp", 2), ("llama", "fsdp=2 tp=2", 4), ("gpt2", "fsdp", 2), ("vit", "tp", 4),
    ("plain", "ddp=2 fsdp=2", 4),
], [
    ("llama", "fsdp offload recompute", 2), ("llama", Layout(replicate=2, shard=2), 4), ("vit", "ddp=2 tp=2", 4),
    ("plain", "fsdp", 2),
]), ids=str)  # fmt: skip
def test_the_same_cell_trains_the_same(kind, strategy, world):
    layout = strategy if isinstance(strategy, Layout) else read_layout(strategy or "ddp", world)
    results = run_ranks(call, world, kind, strategy, world, layout.data, {})
    assert_same(results, alone(kind))
    if kind == "plain":
        assert all(
            result["metrics"]["val_rows"] == 32 and result["metrics"]["val_seen"] == 32 for result in results
        )


def test_sums_and_metrics_count_each_sample_once_where_processes_share_a_batch():
    results = run_ranks(metrics_of_tensor_parallel, 4)
    assert results == [(32.0, 32.0)] * 4


def accumulated(strategy: str | None, readers: int) -> tuple:
    "Two batches to a step, and a validation afterwards with the module as training left it."
    module, data = make("llama")
    trainer = (
        Trainer(strategy=strategy, max_epochs=1, accumulate_grad_batches=2, gradient_clip_val=0.5, **QUIET)
        if strategy
        else Trainer(max_epochs=1, accumulate_grad_batches=2, gradient_clip_val=0.5, **QUIET)
    )
    trainer.fit(module, DataLoader(data, 4 // readers))
    return (
        trainer.validate(module, DataLoader(data, 8 // readers), verbose=False)[0]["val_loss"],
        trainer.global_step,
    )


@pytest.mark.parametrize("strategy", first_of_all(["zero1"], ["fsdp"], ["tp"]))
def test_accumulated_gradients_and_a_validation_afterwards(strategy):
    one = accumulated(None, 1)
    for loss, steps in run_ranks(accumulated, 2, strategy, read_layout(strategy, 2).data):
        assert loss == pytest.approx(one[0], abs=1e-4) and steps == one[1] == 4


SCRIPT = """
import torch
from fsdl_dev.train.text import CausalLM
from fsdl_dev.train.trainer import Trainer
torch.set_num_threads(1)
model = CausalLM("llama", model_settings={"config": {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "vocab_size": 32}})
rows = torch.utils.data.DataLoader([{"input_ids": torch.arange(8)}] * 8, batch_size=2)
trainer = Trainer(strategy="fsdp", devices=2, accelerator="cpu", max_steps=2,
                  enable_model_summary=False, enable_progress_bar=False)
trainer.fit(model, rows)
# one piece: two processes write to one pipe
print(f"DONE {trainer.global_rank} {trainer.world_size} {trainer.global_step} {trainer.strategy.layout}\\n",
      end="", flush=True)
"""


@pytest.mark.slow
def test_a_script_may_leave_the_starting_to_lightning(tmp_path):
    (tmp_path / "job.py").write_text(SCRIPT)
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    } | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "job.py"], cwd=tmp_path, env=environment, text=True, capture_output=True, timeout=600
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "DONE 0 2 2 fsdp=2" in result.stdout


def metrics_of_tensor_parallel() -> tuple[float, float]:
    "A vision transformer on fsdp=2 tp=2 whose validation counts its rows."

    class Counting(ImageClassifier):
        def __init__(self):
            super().__init__("vit_tiny_patch16_224", model_settings=VIT)
            self.seen = SumMetric()

        def validation_step(self, batch, index):
            self.seen(len(batch[1]))
            self.log("rows", float(len(batch[1])), reduce_fx="sum", sync_dist=True)
            self.log("seen", self.seen)

    trainer = Trainer(strategy="fsdp=2 tp=2", max_epochs=1, **QUIET)
    module, (_, data) = Counting(), make("vit")
    trainer.fit(module, DataLoader(data, 4), DataLoader(data, 4))
    return trainer.callback_metrics["rows"].item(), trainer.callback_metrics["seen"].item()


# --- precision and memory
# ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy, world", first_of_all([("ddp", 2)], [("fsdp", 2)], [("fsdp=2 tp=2", 4)]))
def test_mixed_precision_stays_near(strategy, world):
    readers = read_layout(strategy, world).data
    results = run_ranks(call, world, "llama", strategy, world, readers, {"precision": "bf16-mixed"})
    assert results[0]["losses"] == pytest.approx(alone("llama")["losses"], abs=0.05)
    assert results[0]["losses"] != alone("llama")["losses"] and all(
        weight.dtype == torch.float32 for weight in results[0]["weights"].values()
    )


def of_meta(strategy: str, world: int) -> dict:
    "A llama that nobody has given memory."
    pl.seed_everything(0, verbose=False)
    module = CausalLM("llama", model_settings={"config": LLAMA, "meta": True}, lr=1e-2)
    record = Record(1)
    trainer = Trainer(strategy=strategy, callbacks=[record], max_epochs=1, **QUIET)
    trainer.fit(module, DataLoader(Rows(32), 8 // read_layout(strategy, world).data))
    return {"losses": record.losses, "weights": whole(module)}


@pytest.mark.slow
def test_a_module_without_memory_is_cut_first_and_begins_alike():
    one, two = run_ranks(of_meta, 2, "fsdp", 2)[0], run_ranks(of_meta, 4, "fsdp=2 tp=2", 4)[0]
    assert one["losses"] == pytest.approx(two["losses"], abs=1e-4)
    assert one["losses"][0] == pytest.approx(math.log(96), abs=0.1), "as a language model of 96 tokens begins"


# --- checkpoints
# -------------------------------------------------------------------------------------------------


@pytest.mark.tier("long", "fsdp=2 tp=2-4")
@pytest.mark.parametrize("strategy, world", first_of_all([("zero1", 2)], [("fsdp", 2)], [("fsdp=2 tp=2", 4)]))
def test_one_file_resumes_under_its_strategy_and_in_one_process(strategy, world, tmp_path):
    file, readers = str(tmp_path / "half.ckpt"), read_layout(strategy, world).data
    run_ranks(call, world, "llama", strategy, world, readers, {"save": file})
    saved = torch.load(file, weights_only=True)
    assert saved["global_step"] == 4 and set(saved["state_dict"]) == set(alone("llama")["weights"])
    for resumed in (
        run_ranks(call, world, "llama", strategy, world, readers, {"resume": file})[0],
        fit("llama", None, resume=file),
    ):
        assert (
            resumed["losses"] == pytest.approx(alone("llama")["losses"][4:], abs=1e-4)
            and resumed["steps"] == 8
        )


def a_run(strategy: str, folder: str, readers: int) -> list:
    "A training in a run directory, with everything that a run adds."
    os.environ["FSDL_RUN_DIR"] = folder
    result = fit("llama", strategy, 2, readers, checkpoint="one file")
    return result["losses"]


@pytest.mark.parametrize("strategy", first_of_all(["fsdp"], ["tp", "zero1"]))
def test_a_run_writes_its_events_and_checkpoints(strategy, tmp_path):
    (tmp_path / "run").mkdir()
    losses = run_ranks(a_run, 2, strategy, str(tmp_path / "run"), read_layout(strategy, 2).data)
    assert losses[0] == pytest.approx(alone("llama")["losses"], abs=1e-4)
    events = list(read_events(tmp_path / "run" / "events"))
    assert {event["rank"] for event in events if event["kind"] == "progress"} == {0, 1}
    assert (tmp_path / "run" / "checkpoints" / "last.ckpt").is_file()
    assert {event["cls"] for event in events if event["kind"] == "checkpoint"} == {
        "fsdl_dev.train.text:CausalLM"
    }


class Stop(pl.Callback):
    "The scheduler's SIGTERM reaches one process after the third step."

    def on_train_batch_end(self, trainer, *ignored):
        if trainer.global_step == 3 and trainer.global_rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)


def stopped(strategy: str, folder: str, readers: int) -> int:
    os.environ["FSDL_RUN_DIR"] = folder
    module, data = make("llama")
    try:
        Trainer(strategy=strategy, callbacks=[Stop()], checkpoint="one file", max_epochs=5, **QUIET).fit(
            module, DataLoader(data, 8 // readers)
        )
    except SystemExit as ended:
        return ended.code
    return 0


@pytest.mark.parametrize("strategy", first_of_all(["fsdp"], ["tp"]))
def test_sigterm_to_one_process_saves_and_stops_all(strategy, tmp_path):
    (tmp_path / "run").mkdir()
    assert run_ranks(stopped, 2, strategy, str(tmp_path / "run"), read_layout(strategy, 2).data) == [143, 143]
    saved = torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=True)
    assert 3 <= saved["global_step"] <= 5 and set(saved["state_dict"]) == set(alone("llama")["weights"])


# --- where the strategy comes from
# -------------------------------------------------------------------------------


def strategy_of(asked: str | None, word: str | None) -> tuple:
    os.environ.pop("FSDL_STRATEGY", None)
    if word:
        os.environ["FSDL_STRATEGY"] = word
    module, data = make("llama")
    trainer = Trainer(strategy=asked, max_steps=1, **QUIET) if asked else Trainer(max_steps=1, **QUIET)
    trainer.fit(module, DataLoader(data, 4))
    return type(trainer.strategy).__name__, str(getattr(trainer.strategy, "layout", "")), trainer.world_size


def test_the_launchs_word_counts_where_the_cell_gives_none_and_the_cells_where_it_does():
    assert run_ranks(strategy_of, 2, None, "fsdp=2") == [("LayoutStrategy", "fsdp=2", 2)] * 2
    assert run_ranks(strategy_of, 2, "tp=2", "fsdp=2") == [("LayoutStrategy", "tp=2", 2)] * 2
    assert run_ranks(strategy_of, 2, None, None) == [("LayoutDDP", "ddp=2", 2)] * 2


def test_auto_asks_the_advisor_and_all_processes_do_the_same():
    results = run_ranks(strategy_of, 2, "auto", None)
    assert results[0] == results[1] == ("LayoutDDP", "ddp=2", 2), "a small model fits: plain data parallelism"


class OwnOptimizer(CausalLM):
    "Trains with something else than AdamW."

    def configure_optimizers(self):
        return torch.optim.RMSprop(self.parameters(), 1e-3, momentum=0.9, centered=True)


class WantsATrainer(OwnOptimizer):
    "Cannot say it before a training."

    def configure_optimizers(self):
        return super().configure_optimizers() if isinstance(self.trainer, pl.Trainer) else 1 / 0


def told_by_auto(kind: type) -> tuple:
    "What auto says, and whether the training is the one without it."
    os.environ.pop("FSDL_STRATEGY", None)
    results, said = [], io.StringIO()
    for strategy in ("auto", "ddp"):
        module, data = make("llama")
        module.__class__ = kind
        trainer = Trainer(strategy=strategy, max_steps=2, **QUIET)
        torch.manual_seed(3)
        with contextlib.redirect_stdout(said):
            trainer.fit(module, DataLoader(data, 4, shuffle=True))
        results.append(torch.cat([weight.detach().flatten() for weight in module.parameters()]))
    return said.getvalue(), torch.equal(*results)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (OwnOptimizer, "Planned with rmsprop-centered-momentum."),
        (
            WantsATrainer,
            "Planned with adamw. What configure_optimizers makes could not be asked (ZeroDivisionError",
        ),
    ],
)
def test_auto_plans_with_the_modules_own_optimizer_and_changes_nothing(kind, words):
    (first, same), (second, alike) = run_ranks(told_by_auto, 2, kind)
    assert same and alike, "the random numbers are those of a training without auto"
    assert words in first and "strategy:" not in second, first + second


class CutsItself(pl.LightningModule):
    "A module that shards itself in configure_model, as Lightning's documentation shows."

    def __init__(self):
        super().__init__()
        self.net = None

    def configure_model(self):
        from torch.distributed.fsdp import fully_shard

        if self.net is None:
            torch.manual_seed(0)
            self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
            fully_shard(self.net, mesh=self.device_mesh["shard"])

    def training_step(self, batch, index):
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def itself() -> int:
    module = CutsItself()
    Trainer(strategy="fsdp", max_steps=1, **QUIET).fit(
        module, DataLoader(TensorDataset(torch.randn(8, 4)), 2)
    )
    return len([part for part in module.modules() if type(part).__name__.startswith("FSDP")])


def test_a_module_that_cuts_itself_is_left_alone():
    assert run_ranks(itself, 2) == [1, 1], "one unit, its own"


# --- bad input, each tried and read
# ------------------------------------------------------------------------------


def bad(kind: str, strategy: object, settings: dict) -> None:
    module, data = make(kind)
    Trainer(strategy=strategy, max_steps=1, **QUIET, **settings).fit(module, DataLoader(data, 4))


def resnet(strategy: str) -> None:
    _, data = make("vit")
    Trainer(strategy=strategy, max_steps=1, **QUIET).fit(
        ImageClassifier("test_resnet", model_settings={"in_chans": 1}), DataLoader(data, 4)
    )


@pytest.mark.parametrize("function, arguments, words", [
    (bad, ("llama", "fsdp=2 tp=2", {}), r"is for 4 processes, and there are 2.\n  where: strategy\n  fix:   --procs 4"),
    (bad, ("llama", Layout(shard=4), {}), r"The layout fsdp=4 is for 4 processes, and this training has 2 processes"),
    (bad, ("llama", "fdsp", {}), r"Unknown word 'fdsp'.* Did you mean 'fsdp'\?"),
    (bad, ("llama", "fsdp_cpu_offload", {}), r"torch's first, which refuses a CPU(.|\n)*fsdp offload"),
    (bad, ("llama", "deepspeed_stage_2", {}), r'pip install "fsdl_dev\[deepspeed\]"|needs an NVIDIA GPU'),
    (bad, ("llama", "fsdp", {"ema": 0.9}), r"average of the weights(.|\n)*ema=None"),
    (resnet, ("tp",), r"no tensor-parallel plan for the blocks of this model \(BasicBlock\)(.|\n)*fsdp instead of tp"),
])  # fmt: skip
def test_what_cannot_work_says_what_can(function, arguments, words):
    with pytest.raises(RankFailure, match=words):
        run_ranks(function, 2, *arguments)


def test_heads_that_do_not_fit_name_the_counts_and_the_sizes():
    with pytest.raises(
        RankFailure,
        match=(
            r"tp=8 does not divide the heads of this model, which has 8 attention heads and 4 key-value"
            r" heads(.|\n)*one of 1, 2, 4"
        ),
    ):
        run_ranks(bad, 8, "llama", "tp=8", {})


def few() -> None:
    module, data = make("llama")
    Trainer(strategy="fsdp", max_epochs=1, **QUIET).fit(
        module, DataLoader(torch.utils.data.Subset(data, range(6)), 8, drop_last=True)
    )


def test_a_dataset_smaller_than_the_batch_says_samples_batch_and_processes():
    with pytest.raises(RankFailure, match=r"6 samples(.|\n)*batch of 8"):
        run_ranks(few, 2)


def test_one_process_refuses_a_strategy_for_several():
    with pytest.raises(FsdlError, match="is for 2 processes, and there is 1"):
        Trainer(strategy="fsdp=2", **QUIET)
