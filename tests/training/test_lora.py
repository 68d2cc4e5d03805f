"""LoRA in trainings: only adapters move, in one process, in DDP and in FSDP2; what is saved comes back; what is
missing is named.
"""

import importlib.util
import os
import subprocess
import sys

import pytest
import pytorch_lightning as pl
import torch
from choices import first_of_all
from ranks import run_ranks
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader

from fsdl_dev.core.errors import FsdlError
from fsdl_dev.models.lora import add_lora, load_adapters, merge_lora, save_adapters, trainable_share
from fsdl_dev.models.transformers import load_transformer
from fsdl_dev.train.checkpoints.weights import load_weights
from fsdl_dev.train.text import CausalLM
from fsdl_dev.train.trainer import Trainer
from fsdl_dev.train.vision import ImageClassifier

SMALL = {
    "config": {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": 64,
    }
}
QUIET = {
    "accelerator": "cpu",
    "enable_model_summary": False,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
}


def texts(rank: int = 0, world: int = 1) -> DataLoader:
    "The same batches of eight for any number of ranks."
    tokens = torch.randint(0, 64, (48, 16), generator=torch.Generator().manual_seed(1))
    tokens[:, 1::2] = tokens[:, ::2]  # something to learn
    mine = torch.cat([batch.chunk(world)[rank] for batch in tokens.split(8)])
    return DataLoader([{"input_ids": row} for row in mine], 8 // world)


class Told(pl.Callback):
    "The loss of each step, as the mean of all ranks."

    def __init__(self):
        self.losses: list[float] = []

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        loss = outputs["loss"].detach().clone()
        if trainer.world_size > 1:
            torch.distributed.all_reduce(loss)
        self.losses.append(float(loss) / trainer.world_size)


def adapters_of(module: torch.nn.Module) -> dict:
    whole = {
        name: p.full_tensor() if isinstance(p, DTensor) else p
        for name, p in module.named_parameters()
        if p.requires_grad
    }
    return {
        name.replace("_checkpoint_wrapped_module.", ""): tensor.detach().clone()
        for name, tensor in whole.items()
    }


def train(strategy: str | None, dtype: str | None = None) -> tuple:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(0)
    module = CausalLM("llama", {**SMALL, "dtype": dtype}, lr=1e-2, lora={"r": 4, "targets": "all-linear"})
    frozen = module.model.model.layers[0].mlp.up_proj.base_layer.weight.detach().clone()
    told = Told()
    trainer = Trainer(
        max_epochs=4,
        callbacks=[told],
        use_distributed_sampler=False,
        **({"strategy": strategy} if strategy else {}),
        **QUIET,
    )
    trainer.fit(module, texts(rank, world))
    after = module.model.get_submodule("model.layers.0.mlp.up_proj.base_layer").weight
    after = after.full_tensor() if isinstance(after, DTensor) else after
    held = sum(p.numel() for group in trainer.optimizers[0].param_groups for p in group["params"])
    sharded = any(isinstance(p, DTensor) for p in module.parameters())
    return told.losses, adapters_of(module), torch.equal(frozen, after), held, sharded


@pytest.fixture(scope="module")
def alone() -> tuple:
    return run_ranks(train, 1, None)[0]


def test_only_adapters_are_trained(alone):
    losses, adapters, kept, held, _ = alone
    assert losses[-1] < losses[0] - 0.1 and kept, losses
    assert (
        adapters
        and all("lora_" in name for name in adapters)
        and held == sum(tensor.numel() for tensor in adapters.values())
    )
    assert all(tensor.abs().sum() > 0 for name, tensor in adapters.items() if "lora_B" in name)


@pytest.mark.parametrize("strategy", first_of_all(["ddp"], ["fsdp=2"], ["fsdp=2 recompute"]))
def test_two_ranks_train_the_same_adapters(alone, strategy):
    for losses, adapters, kept, held, sharded in run_ranks(train, 2, strategy):
        assert (
            losses == pytest.approx(alone[0], abs=2e-5)
            and kept
            and held == alone[3]
            and sharded == strategy.startswith("fsdp")
        )
        assert adapters.keys() == alone[1].keys()
        for name, tensor in adapters.items():
            assert torch.allclose(tensor, alone[1][name], atol=2e-4), name


@pytest.mark.slow
def test_frozen_weights_in_sixteen_bit_are_sharded_beside_adapters_in_thirty_two():
    one, two = run_ranks(train, 1, None, "bfloat16")[0], run_ranks(train, 2, "fsdp=2", "bfloat16")
    for losses, _, kept, _, sharded in two:
        assert sharded and kept and losses == pytest.approx(one[0], abs=2e-2) and losses[-1] < losses[0] - 0.1


def test_a_checkpoint_and_the_adapters_of_a_training_come_back(tmp_path):
    torch.manual_seed(0)
    module = CausalLM("llama", SMALL, lr=1e-2, lora={"r": 4})
    trainer = pl.Trainer(max_epochs=1, **QUIET)
    trainer.fit(module, texts())
    trainer.save_checkpoint(tmp_path / "all.ckpt")
    tokens = next(iter(texts()))["input_ids"]
    module.eval()
    logits = module(tokens)
    assert torch.equal(load_weights(tmp_path / "all.ckpt", CausalLM)(tokens), logits)

    save_adapters(module.model, tmp_path / "adapters")
    assert (tmp_path / "adapters" / "adapter_model.safetensors").stat().st_size < 0.1 * (
        tmp_path / "all.ckpt"
    ).stat().st_size
    torch.manual_seed(0)
    base = load_adapters(CausalLM("llama", SMALL).model.eval(), tmp_path / "adapters")
    assert torch.equal(base(input_ids=tokens).logits, logits)
    merge_lora(base).save_pretrained(tmp_path / "whole")
    plain = load_transformer("causal-lm", tmp_path / "whole", pretrained=True).eval()
    assert torch.allclose(plain(input_ids=tokens).logits, logits, atol=1e-5)


def test_weights_in_sixteen_bit_have_adapters_in_thirty_two(tmp_path):
    torch.manual_seed(0)
    module = CausalLM(
        "llama", {**SMALL, "dtype": "bfloat16"}, lr=2e-2, lora={"r": 4, "targets": "all-linear"}
    )
    types = {(p.requires_grad, p.dtype) for p in module.parameters()}
    assert types == {(False, torch.bfloat16), (True, torch.float32)}
    told = Told()
    pl.Trainer(max_epochs=5, callbacks=[told], **QUIET).fit(module, texts())
    assert sum(told.losses[-6:]) < sum(told.losses[:6]) - 0.5  # an epoch each


def test_an_image_model_of_transformers():
    vit = {
        "config": {
            "num_hidden_layers": 1,
            "hidden_size": 32,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "image_size": 16,
            "patch_size": 8,
        }
    }
    module = ImageClassifier("vit", 3, library="transformers", model_settings=vit, lora={"r": 2})
    assert (
        module.model.classifier.weight.requires_grad
        and 0 < trainable_share(module.model)[0] < trainable_share(module.model)[1] / 2
    )
    with pytest.raises(FsdlError, match="library"):
        ImageClassifier("test_resnet", lora={"r": 2})


def test_words_for_what_is_wrong(monkeypatch):
    with pytest.raises(FsdlError, match="whole number"):
        CausalLM("llama", SMALL, lora={"r": 0})
    with pytest.raises(FsdlError, match="no layer 'k_prj'.*Did you mean.*k_proj"):
        CausalLM("llama", SMALL, lora={"targets": ["k_prj"]})
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "peft" else find(name, *rest)
    )
    with pytest.raises(FsdlError, match="needs the package peft") as refused:
        add_lora(load_transformer("causal-lm", "llama", **SMALL))
    assert "fsdl_dev[lora]" in str(refused.value)


@pytest.mark.slow
def test_nothing_else_needs_peft():
    "The modules can be imported and used where the extra is not installed."
    code = (
        "import sys; sys.modules['peft'] = None\nfrom fsdl_dev.train.text import CausalLM\nCausalLM('llama',"
        " %r)\nprint('fine')" % SMALL
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.stdout.strip() == "fine", done.stderr[-2000:]
