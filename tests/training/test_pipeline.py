"""Pipelines in several processes: the same losses and weights as one process, in the order that the schedules
say; and what is refused, with its words.
"""

import os
import warnings

import pytest
import pytorch_lightning as pl
import torch
import torch.distributed as dist
from choices import first_of_all, pairwise
from ranks import run_ranks
from schedules import schedule_order
from torch import nn
from torch.nn.functional import mse_loss

from fsdl_dev.core.layout import SCHEDULES, Layout, read_layout
from fsdl_dev.data.digits import DigitsData
from fsdl_dev.data.text import TextData
from fsdl_dev.models.timm import load_timm
from fsdl_dev.models.transformers import load_transformer
from fsdl_dev.parallel.apply import apply_layout, data_group, make_mesh
from fsdl_dev.parallel.pipeline.step import Pipeline, own_stages
from fsdl_dev.train.checkpoints.reader import read_weights
from fsdl_dev.train.text import CausalLM, SequenceClassifier
from fsdl_dev.train.trainer import Trainer
from fsdl_dev.train.vision import ImageClassifier

# of AdamW: with the usual 1e-8 it makes steps of rounding. The bias of attention's keys has no gradient, and
# one of 1e-11 is computed
EPS = 1e-6
# of losses and weights after some steps of float32: sums over microbatches are taken in another order
TOLERANCE = 1e-5


def tower(seed: int = 0, layers: int = 8) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 16),
        *[nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(layers)],
        nn.Linear(16, 3),
    )


def batches(count: int = 4, size: int = 16) -> list[tuple]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(size, 6, generator=generator), torch.randn(size, 3, generator=generator))
        for _ in range(count)
    ]


def plain_loop(model: nn.Module, data: list[tuple]) -> list[float]:
    optimizer, losses = torch.optim.AdamW(model.parameters(), 1e-2), []
    for x, y in data:
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


# a pipeline in a plain torch loop


def in_stages(layout: Layout, watch: bool = False) -> tuple:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    stages = own_stages(tower(), layout, rank)
    seen = []
    if watch:
        for index, stage in enumerate(stages):
            number = rank + layout.pipeline * index
            stage.register_forward_hook(
                lambda module, x, y, number=number: (
                    seen.append(("forward", number)) if module.training and y.requires_grad else None
                )
            )
            next(iter(stage.parameters())).register_post_accumulate_grad_hook(
                lambda parameter, number=number: seen.append(("backward", number))
            )
    pipeline = Pipeline(
        stages,
        layout,
        dist.group.WORLD,
        lambda batch: batch[0],
        lambda output, batch: mse_loss(output, batch[1]),
    )
    optimizer, losses = torch.optim.AdamW([p for stage in stages for p in stage.parameters()], 1e-2), []
    for batch in batches():
        optimizer.zero_grad()
        seen.clear()
        loss = pipeline.step(batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        odd = batches(1, 13)[0]
        evaluated, predicted = pipeline.evaluate(odd).item(), pipeline.predict(odd[0])
    weights = {
        name: parameter.detach().clone() for stage in stages for name, parameter in stage.named_parameters()
    }
    return losses, weights, evaluated, predicted, list(seen)


@pytest.mark.parametrize(("schedule", "world"), pairwise(SCHEDULES, [2, 4]))
def test_every_schedule_trains_as_one_process_does(schedule, world):
    layout = Layout(pipeline=world, schedule=schedule, microbatches=4)
    results = run_ranks(in_stages, world, layout, True)
    model = tower()
    expected, odd = plain_loop(model, batches()), batches(1, 13)[0]
    for losses, _, evaluated, predicted, _ in results:
        assert losses == pytest.approx(expected, abs=TOLERANCE)
        assert evaluated == pytest.approx(mse_loss(model(odd[0]), odd[1]).item(), abs=TOLERANCE)
        assert torch.allclose(predicted, model(odd[0]), atol=TOLERANCE)
    names = [name for _, weights, *_ in results for name in weights]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters()), (
        "each parameter in one process"
    )
    whole = {name: value for _, weights, *_ in results for name, value in weights.items()}
    for name, parameter in model.named_parameters():
        assert torch.allclose(whole[name], parameter, atol=TOLERANCE), name
    for rank, actions in enumerate(schedule_order(schedule, world, 4)):
        assert results[rank][4] == actions, f"rank {rank} works in the order that the schedule says"


# with FSDP2, tensor parallelism and copies


def llama(**changes) -> nn.Module:
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 64,
    }
    return load_transformer("causal-lm", "llama", config={**sizes, **changes})


def vision() -> nn.Module:
    torch.manual_seed(0)
    return load_timm(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=32, depth=4, num_heads=4, num_classes=5
    )


def gpt2() -> nn.Module:
    torch.manual_seed(0)
    quiet = {
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    return load_transformer(
        "causal-lm",
        "gpt2",
        config={"n_embd": 32, "n_layer": 4, "n_head": 4, "vocab_size": 64, "n_positions": 32, **quiet},
    )


def samples(build, size: int = 16) -> list[tuple]:
    generator = torch.Generator().manual_seed(1)
    if build is vision:
        return [
            (
                torch.randn(size, 3, 32, 32, generator=generator),
                torch.randint(0, 5, (size,), generator=generator),
            )
            for _ in range(3)
        ]
    return [(tokens := torch.randint(0, 64, (size, 12), generator=generator), tokens) for _ in range(3)]


def model_loss(output: torch.Tensor, batch: tuple) -> torch.Tensor:
    if output.ndim == 2:
        return nn.functional.cross_entropy(output, batch[1])
    return nn.functional.cross_entropy(output[:, :-1].flatten(0, 1), batch[1][:, 1:].flatten())


def one_process(build) -> tuple[list[float], dict]:
    model, losses = build(), []
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, eps=EPS)
    for batch in samples(build):
        optimizer.zero_grad()
        output = model(batch[0])
        loss = model_loss(getattr(output, "logits", output), batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: parameter.detach() for name, parameter in model.named_parameters()}


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def in_layout(layout: Layout, build) -> tuple[list[float], dict]:
    dist.init_process_group("gloo")
    mesh = make_mesh(layout)
    stages = own_stages(build(), layout, mesh["pipeline"].get_local_rank())
    stages = [apply_layout(stage, layout, mesh) for stage in stages]
    pipeline = Pipeline(stages, layout, mesh.get_group("pipeline"), lambda batch: batch[0], model_loss)
    parameters = {name: parameter for stage in stages for name, parameter in stage.named_parameters()}
    optimizer, losses, group = (
        torch.optim.AdamW(parameters.values(), 1e-2, eps=EPS),
        [],
        data_group(layout, mesh),
    )
    for batch in samples(build):
        optimizer.zero_grad()
        place = dist.get_rank(group) if group else 0
        loss = pipeline.step(tuple(part.chunk(layout.data)[place] for part in batch))
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        if group:
            dist.all_reduce(mean, group=group)
        losses.append(mean.item() / layout.data)
    return losses, {name: whole(parameter) for name, parameter in parameters.items()}


def same_as_one_process(layout: Layout, build) -> None:
    expected, weights = one_process(build)
    results = run_ranks(in_layout, layout.world, layout, build)
    found = {}
    for losses, parameters in results:
        assert losses == pytest.approx(expected, abs=TOLERANCE)
        found |= parameters
    assert found.keys() == weights.keys()
    for name, expected in weights.items():
        assert torch.allclose(found[name], expected, atol=1e-4), (name, (found[name] - expected).abs().max())


@pytest.mark.tier("long", "pp=2 fsdp=2 *")
@pytest.mark.parametrize(
    "words",
    first_of_all(
        ["pp=2 ddp=2"],
        ["pp=2 fsdp=2", "pp=2 fsdp=2 recompute gpipe microbatches=2"],
        ["pp=2 fsdp=2 interleaved microbatches=4", "pp=2 tp=2"],
    ),
)
def test_llama_in_four_processes(words):
    same_as_one_process(read_layout(words, 4), llama)


@pytest.mark.tier("long", "pp=2 fsdp=2-vision")
@pytest.mark.parametrize(
    ("words", "build"), pairwise(["pp=2 fsdp=2", "pp=2 tp=2 interleaved"], [vision, gpt2])
)
def test_other_models_in_four_processes(words, build):
    same_as_one_process(read_layout(words, 4), build)


@pytest.mark.tier("long")
@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    "words",
    first_of_all(
        ["pp=2 fsdp=2 tp=2 interleaved microbatches=2"],
        ["pp=2 ddp=2 tp=2 microbatches=2", "pp=2 ddp=2 fsdp=2 microbatches=2"],
    ),
)
def test_three_axes_on_eight_processes(words):
    same_as_one_process(read_layout(words, 8), llama)


# the user's cell: our modules under our Trainer


SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


class Curve(pl.Callback):
    "The losses that were logged."

    def __init__(self):
        self.train: list[float] = []
        self.validation: list[float] = []

    def on_train_batch_end(self, trainer, *ignored):
        self.train.append(trainer.callback_metrics["train_loss"].item())

    def on_validation_epoch_end(self, trainer, module):
        if not trainer.sanity_checking:
            self.validation += [
                value.item()
                for name, value in sorted(trainer.callback_metrics.items())
                if name.startswith("val_")
            ]


def language_data(batch_size: int) -> TextData:
    text = " ".join(str(number * number % 977) for number in range(1200))
    return TextData(text, batch_size=batch_size, block_size=16, val_fraction=0.2)


def cell(
    strategy: str | None, kind: str, batch: int, folder: str, settings: dict, resume: str | None = None
) -> dict:
    "What stands in a notebook."
    pl.seed_everything(0, verbose=False)
    curve = Curve()
    if kind == "text":
        data = language_data(batch)
        module = CausalLM("llama", {"config": {**SIZES, "vocab_size": data.vocab_size}}, lr=1e-2)
    else:
        data = DigitsData(batch_size=batch, image_size=16)
        module = ImageClassifier(
            "vit_tiny_patch16_224",
            model_settings={
                "in_chans": 1,
                "img_size": 16,
                "patch_size": 4,
                "embed_dim": 32,
                "depth": 4,
                "num_heads": 4,
            },
            lr=1e-2,
        )
    settings = {"max_steps": 4, "limit_val_batches": 3, **settings}
    trainer = Trainer(
        accelerator="cpu",
        enable_model_summary=False,
        enable_progress_bar=False,
        log_every_n_steps=1,
        callbacks=[curve],
        num_sanity_val_steps=1,
        **{"strategy": strategy} if strategy else {},
        **settings,
    )
    trainer.fit(module, data, ckpt_path=resume)
    trainer.save_checkpoint(f"{folder}/end.ckpt")
    tested = (
        trainer.validate(module, data, verbose=False)
        if kind == "text" and settings["limit_val_batches"]
        else None
    )
    return {
        "train": curve.train,
        "validation": curve.validation,
        "tested": tested,
        "rank": trainer.global_rank,
    }


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_language_model_trains_in_a_pipeline_as_on_one_device(tmp_path):
    (tmp_path / "one").mkdir(), (tmp_path / "two").mkdir()
    settings = {"val_check_interval": 2, "gradient_clip_val": 0.5}
    alone = run_ranks(cell, 1, None, "text", 16, str(tmp_path / "one"), settings)[0]
    both = run_ranks(cell, 2, "pp=2", "text", 16, str(tmp_path / "two"), settings)
    for found in both:
        assert found["train"] == pytest.approx(alone["train"], abs=1e-4) and len(found["train"]) == 4
        assert (
            found["validation"] == pytest.approx(alone["validation"], abs=1e-4)
            and len(found["validation"]) == 3
        )
        assert found["tested"][0]["val_loss"] == pytest.approx(alone["tested"][0]["val_loss"], abs=1e-4)
    files = [torch.load(tmp_path / name / "end.ckpt", weights_only=True) for name in ("one", "two")]
    assert list(files[0]["state_dict"]) == list(files[1]["state_dict"]), (
        "one file with the names and the order of one process"
    )
    for name, value in files[0]["state_dict"].items():
        assert torch.allclose(value, files[1]["state_dict"][name], atol=1e-3), name
    states = [file["optimizer_states"][0] for file in files]
    assert [group["params"] for group in states[0]["param_groups"]] == [
        group["params"] for group in states[1]["param_groups"]
    ]
    for number, entries in states[0]["state"].items():
        assert entries["exp_avg"].shape == states[1]["state"][number]["exp_avg"].shape
        assert torch.allclose(entries["exp_avg"], states[1]["state"][number]["exp_avg"], atol=1e-3)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_file_of_a_pipeline_goes_on_as_one_process_and_the_other_way(tmp_path):
    folders = {name: tmp_path / name for name in ("one", "stages", "one on", "stages on")}
    for folder in folders.values():
        folder.mkdir()
    run_ranks(cell, 1, None, "text", 16, str(folders["one"]), {"max_steps": 2, "limit_val_batches": 0})
    run_ranks(
        cell, 4, "pp=2 fsdp=2", "text", 8, str(folders["stages"]), {"max_steps": 2, "limit_val_batches": 0}
    )
    on = {"max_steps": 4, "limit_val_batches": 0}
    one = run_ranks(
        cell, 1, None, "text", 16, str(folders["one on"]), on, str(folders["stages"] / "end.ckpt")
    )[0]
    stages = run_ranks(
        cell,
        4,
        "pp=2 fsdp=2 interleaved microbatches=4",
        "text",
        8,
        str(folders["stages on"]),
        on,
        str(folders["one"] / "end.ckpt"),
    )
    assert len(one["train"]) == 2 and len(stages[0]["train"]) == 2, (
        "two steps more, after the two of the file"
    )
    mean = [sum(rank["train"][step] for rank in stages) / 4 for step in range(2)]
    assert mean == pytest.approx(one["train"], abs=1e-3)
    ends = [torch.load(folders[name] / "end.ckpt", weights_only=True) for name in ("one on", "stages on")]
    assert ends[0]["global_step"] == ends[1]["global_step"] == 4
    for name, value in ends[0]["state_dict"].items():
        assert torch.allclose(value, ends[1]["state_dict"][name], atol=2e-3), name


def with_half_and_folder(folder: str, resume: bool) -> tuple[list[float], dict]:
    pl.seed_everything(0, verbose=False)
    curve, data = Curve(), language_data(16)
    module = CausalLM("llama", {"config": {**SIZES, "vocab_size": data.vocab_size}}, lr=1e-2)
    trainer = Trainer(
        accelerator="cpu",
        strategy="pp=2",
        max_steps=4 if resume else 2,
        limit_val_batches=0,
        precision="bf16-mixed",
        callbacks=[curve],
        log_every_n_steps=1,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    trainer.fit(module, data, ckpt_path=f"{folder}/step00000002" if resume else None)
    if not resume:
        trainer.save_checkpoint(f"{folder}/step00000002")
    return curve.train, {name: value.detach().clone() for name, value in module.named_parameters()}


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_folder_checkpoint_of_a_pipeline_in_half_precision_goes_on(tmp_path):
    before = run_ranks(with_half_and_folder, 2, str(tmp_path), False)
    held = read_weights(tmp_path / "step00000002")
    saved = {name: value for _, weights in before for name, value in weights.items()}
    assert held.keys() >= saved.keys() and all(
        torch.equal(held[name], value) for name, value in saved.items()
    ), "the parts of both stages, whole"
    after = run_ranks(with_half_and_folder, 2, str(tmp_path), True)
    assert (
        all(len(train) == 2 and train == after[0][0] for train, _ in after)
        and after[0][0][-1] < before[0][0][0]
    )


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_vision_transformer_trains_interleaved_and_counts_right_answers(tmp_path):
    (tmp_path / "one").mkdir(), (tmp_path / "two").mkdir()
    alone = run_ranks(cell, 1, None, "images", 32, str(tmp_path / "one"), {"val_check_interval": 4})[0]
    both = run_ranks(
        cell, 2, "pp=2 interleaved", "images", 32, str(tmp_path / "two"), {"val_check_interval": 4}
    )
    for found in both:
        assert found["train"] == pytest.approx(alone["train"], abs=1e-4)
        assert (
            found["validation"] == pytest.approx(alone["validation"], abs=1e-3)
            and len(found["validation"]) == 2
        ), "accuracy and loss"


# what is refused


class Own(pl.LightningModule):
    "A module whose training step does not ask for the pipeline's loss."

    def __init__(self, way: str):
        super().__init__()
        self.model, self.way = tower(layers=4), way

    def batch_inputs(self, batch):
        return batch[0]

    def output_loss(self, output, batch):
        return mse_loss(output, batch[1])

    def batch_loss(self, batch):
        return self.output_loss(self.model(batch[0]), batch)

    def training_step(self, batch, index):
        if self.way == "model":
            return mse_loss(self.model(batch[0]), batch[1])
        if self.way == "self":
            return mse_loss(self(batch[0]), batch[1])
        return self.batch_loss(batch) if self.way == "loss" else batch[0].mean().requires_grad_()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class ByHand(Own):
    "Its own optimisation."

    def __init__(self):
        super().__init__("loss")
        self.automatic_optimization, self.losses = False, []

    def training_step(self, batch, index):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        loss = self.batch_loss(batch)
        self.manual_backward(loss / 2)
        optimizer.step()
        self.losses.append(loss.item())


def loader(size: int = 16, shift: int = 0) -> torch.utils.data.DataLoader:
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(3 + shift))
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x[:, :3].sin()), size)


def fitted(module: pl.LightningModule, data: object, words: str = "pp=2", **settings) -> pl.LightningModule:
    trainer = Trainer(
        accelerator="cpu",
        strategy=words,
        max_steps=2,
        enable_model_summary=False,
        enable_progress_bar=False,
        use_distributed_sampler=False,
        **settings,
    )
    trainer.fit(module, data)
    return module


def refusals() -> dict[str, str]:
    "What each of these says."
    rank = int(os.environ["RANK"])
    small = {**SIZES, "vocab_size": 300}
    gpt = {
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 2,
        "vocab_size": 300,
        "n_positions": 32,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    tries = {
        "layers": lambda: fitted(
            CausalLM("llama", {"config": {**small, "num_hidden_layers": 3}}), language_data(16)
        ),
        "interleaved layers": lambda: fitted(
            CausalLM("llama", {"config": {**small, "num_hidden_layers": 6}}),
            language_data(16),
            "pp=2 interleaved",
        ),
        "tied": lambda: fitted(CausalLM("gpt2", {"config": gpt}), language_data(16)),
        "pieces": lambda: fitted(CausalLM("llama", {"config": small}), language_data(10)),
        "few": lambda: fitted(CausalLM("llama", {"config": small}), language_data(16), "pp=2 microbatches=1"),
        "hooks": lambda: fitted(
            SequenceClassifier(
                "bert",
                2,
                {
                    "config": {
                        "hidden_size": 32,
                        "num_hidden_layers": 2,
                        "num_attention_heads": 2,
                        "intermediate_size": 64,
                    }
                },
            ),
            loader(),
        ),
        "average": lambda: fitted(Own("loss"), loader(), ema=0.9),
        "compiled": lambda: fitted(CausalLM("llama", {"config": small}, compile="eager"), language_data(16)),
        "convolutions": lambda: fitted(
            ImageClassifier("resnet18", model_settings={"in_chans": 1}), DigitsData(batch_size=16)
        ),
        "model": lambda: fitted(Own("model"), loader()),
        "self": lambda: fitted(Own("self"), loader()),
        "nothing": lambda: fitted(Own("nothing"), loader()),
        "samples": lambda: fitted(Own("loss"), loader(shift=rank)),
    }
    found = {}
    for name, attempt in tries.items():
        pl.seed_everything(0, verbose=False)
        try:
            attempt()
            found[name] = "accepted"
        except Exception as problem:
            found[name] = f"{type(problem).__name__}: {problem}"
    return found


def test_what_a_pipeline_refuses_is_said_in_words():
    ranks = run_ranks(refusals, 2)
    for found in ranks:
        print("\n\n".join(f"[{name}]\n{text}" for name, text in found.items()))
        expected = {
            "layers": ("3 layers cannot be shared out equally to 2 stages", "1, 3 stages"),
            "interleaved layers": ("6 layers cannot be shared out equally to 4 stages", "1, 2, 3, 6 stages"),
            "tied": ("transformer.wte.weight", "lm_head.weight", "tie_word_embeddings"),
            "pieces": (
                "batch of 10 cannot be cut into 8 equal microbatches",
                "batch_size=8, or microbatches=10",
            ),
            "few": ("at least as many microbatches as stages", "microbatches=8"),
            "hooks": ("SequenceClassifier has no batch_inputs", "call batch_loss in training_step"),
            "average": ("An average of the weights", "leave ema out"),
            "compiled": ("compiled model cannot be cut", "compile=False"),
            "convolutions": ("ResNet", "fsdp"),
            "model": ("holds only some layers of self.model", "self.batch_loss(batch)"),
            "self": ("no process sees the whole model", "self.batch_loss(batch)"),
            "nothing": ("did not ask the pipeline for its loss", "self.batch_loss(batch)"),
            "samples": ("read different samples", "one seed"),
        }
        for name, words in expected.items():
            assert found[name].startswith("FsdlError") and all(word in found[name] for word in words), found[
                name
            ]


def by_hand_and_accumulated() -> tuple[list[float], dict, list[str]]:
    pl.seed_everything(0, verbose=False)
    own = fitted(ByHand(), loader())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module = fitted(Own("loss"), loader(8), "pp=2 gpipe microbatches=4", accumulate_grad_batches=2)
    told = [str(warning.message) for warning in caught if "accumulated" in str(warning.message)]
    return own.losses, {name: value.detach().clone() for name, value in module.named_parameters()}, told


def test_manual_optimisation_and_accumulation_work_as_on_one_device():
    ranks = run_ranks(by_hand_and_accumulated, 2)
    x = next(iter(loader(16)))[0]
    batches_of_16 = [(x, y) for x, y in loader(16)][:2]
    model = tower(layers=4)
    losses, optimizer = [], torch.optim.SGD(model.parameters(), 0.1)
    for x, y in batches_of_16:
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        (loss / 2).backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(found[0] == pytest.approx(losses, abs=TOLERANCE) for found in ranks)
    model = tower(layers=4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in batches_of_16:  # two accumulated batches of 8 are one of 16
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
    accumulated = {name.removeprefix("model."): value for found in ranks for name, value in found[1].items()}
    assert accumulated.keys() == dict(model.named_parameters()).keys()
    assert all(
        torch.allclose(accumulated[name], value, atol=TOLERANCE) for name, value in model.named_parameters()
    )
    assert len(ranks[0][2]) == 1 and "in more microbatches" in ranks[0][2][0] and not ranks[1][2], (
        "one process warns"
    )
