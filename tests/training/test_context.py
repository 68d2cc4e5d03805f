"""Sequences shared out over processes: the same losses and weights as one process, on CPU processes by torch's
gathering op, on GPUs by its ring attention.
"""

import os

import pytest
import pytorch_lightning as pl
import torch
import torch.distributed as dist
from choices import first_of_all
from ranks import run_ranks
from test_pipeline import SIZES, Curve, language_data, whole

from fsdl_dev.core.errors import FsdlError
from fsdl_dev.core.layout import Layout, read_layout
from fsdl_dev.models.transformers import load_transformer
from fsdl_dev.parallel.apply import apply_layout, data_group, make_mesh
from fsdl_dev.parallel.context import Sliced, check_context
from fsdl_dev.train.text import CausalLM
from fsdl_dev.train.trainer import Trainer
from fsdl_dev.train.vision import ImageClassifier

TOLERANCE = 1e-5  # of losses after some steps of float32


def build(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    quiet = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    sizes = {
        "llama": {**SIZES, "vocab_size": 64},
        "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64, "n_positions": 32, **quiet},
    }
    return load_transformer("causal-lm", name, config=sizes[name])


def tokens() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, 64, (8, 16), generator=generator) for _ in range(3)]


def in_slices(layout: Layout, name: str, device: str) -> tuple[list[float], float, dict]:
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    mesh = make_mesh(layout, device)
    model = build(name).to(device)
    check_context(model, layout)
    model = apply_layout(model, layout, mesh)
    sliced, group = Sliced(model, mesh["context"]), data_group(layout, mesh)
    optimizer, losses = torch.optim.AdamW(model.parameters(), 1e-2), []
    for batch in tokens():
        optimizer.zero_grad()
        loss = sliced.step(batch.chunk(layout.data)[dist.get_rank(group) if group else 0].to(device))
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        if group:
            dist.all_reduce(mean, group=group)
        losses.append(mean.item() / layout.data)
    evaluated = sliced.evaluate(tokens()[0].to(device)).item()
    return losses, evaluated, {key: whole(value).cpu() for key, value in model.named_parameters()}


def same_as_one_process(
    words: str, world: int, name: str, device: str = "cpu", tolerance: float = TOLERANCE
) -> None:
    model, losses = build(name), []
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for batch in tokens():
        optimizer.zero_grad()
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    evaluated = model(input_ids=tokens()[0], labels=tokens()[0]).loss.item()
    for found, seen, weights in run_ranks(in_slices, world, read_layout(words, world), name, device):
        assert found == pytest.approx(losses, abs=tolerance) and seen == pytest.approx(
            evaluated, abs=10 * tolerance
        )
        assert all(
            torch.allclose(weights[key], value, atol=10 * tolerance)
            for key, value in model.named_parameters()
        )


@pytest.mark.tier("long", "fsdp=2 cp=2-4-llama", "cp=2 tp=2-4-gpt2")
@pytest.mark.parametrize(
    "words,world,name",
    first_of_all(
        [("cp=2", 2, "llama")],
        [("cp=2", 2, "gpt2"), ("cp=4", 4, "llama")],
        [("fsdp=2 cp=2", 4, "llama"), ("cp=2 tp=2", 4, "gpt2")],
    ),
)
def test_slices_of_sequences_train_as_whole_ones_do(words, world, name):
    same_as_one_process(words, world, name)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="torch's ring attention needs two NVIDIA GPUs")
@pytest.mark.parametrize("words", ["cp=2", "cp=2 recompute"])
def test_ring_attention_on_gpus_trains_as_one_process_does(words):
    same_as_one_process(words, 2, "llama", "cuda", 1e-3)


def cell(strategy: str | None) -> tuple[list, list]:
    pl.seed_everything(0, verbose=False)
    curve, data = Curve(), language_data(16)
    module = CausalLM("llama", {"config": {**SIZES, "vocab_size": data.vocab_size}}, lr=1e-2)
    trainer = Trainer(
        accelerator="cpu",
        max_steps=3,
        val_check_interval=3,
        limit_val_batches=2,
        enable_model_summary=False,
        enable_progress_bar=False,
        gradient_clip_val=0.5,
        callbacks=[curve],
        log_every_n_steps=1,
        **{"strategy": strategy} if strategy else {},
    )
    trainer.fit(module, data)
    return curve.train, curve.validation


@pytest.mark.slow
def test_the_users_cell_with_long_sequences():
    alone = run_ranks(cell, 1, None)[0]
    for train, validation in run_ranks(cell, 2, "cp=2"):
        assert train == pytest.approx(alone[0], abs=1e-4) and len(train) == 3
        assert validation == pytest.approx(alone[1], abs=1e-4) and len(validation) == 1


def refused() -> str:
    trainer = Trainer(accelerator="cpu", max_steps=1, enable_model_summary=False, strategy="cp=2")
    with pytest.raises(FsdlError) as caught:
        trainer.fit(ImageClassifier("test_vit"), torch.utils.data.DataLoader([(torch.zeros(3, 160, 160), 0)]))
    return str(caught.value)


def test_other_models_are_refused():
    for said in run_ranks(refused, 2):
        assert "not a causal language model of Transformers" in said and "fsdp, tp or pp for others" in said
