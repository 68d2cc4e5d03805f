"""One device, a model that does not fit on it: parameters, gradients and optimiser states rest in the host's
memory, and one block at a time is whole.
"""

import os

import pytest
import pytorch_lightning as pl
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import DataLoader

from fsdl_dev.core.layout import one_device
from fsdl_dev.models.transformers import load_transformer
from fsdl_dev.parallel.apply import apply_layout, make_mesh
from fsdl_dev.train.text import CausalLM
from fsdl_dev.train.trainer import Trainer

DEEP = {
    "num_hidden_layers": 16,
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 64,
}
QUIET = {
    "accelerator": "cpu",
    "enable_model_summary": False,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
}


def whole_bytes(model: torch.nn.Module) -> int:
    "Bytes of parameters that are gathered just now: what a device would hold of them."
    groups = [
        module._get_fsdp_state()._fsdp_param_group
        for module in model.modules()
        if isinstance(module, FSDPModule)
    ]
    parameters = [parameter for group in groups if group for parameter in group.fsdp_params]
    return sum(
        p._unsharded_param.untyped_storage().size() for p in parameters if hasattr(p, "_unsharded_param")
    )


def steps(offload: bool) -> dict:
    "Three steps of a deep model, and the most that was whole at a time."
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model, layout = (
        load_transformer("causal-lm", "llama", config=DEEP),
        one_device(offload=True, recompute=True),
    )
    if offload:
        apply_layout(model, layout, make_mesh(layout))
    most, gathered = [0], []

    def look(*ignored) -> None:
        most[0] = max(most[0], whole_bytes(model))

    for block in model.model.layers:
        block.register_forward_hook(look)
        block.register_full_backward_hook(look)
    optimiser, generator = torch.optim.AdamW(model.parameters(), 1e-3), torch.Generator().manual_seed(0)
    for _ in range(3):
        tokens = torch.randint(0, 64, (4, 32), generator=generator)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        gathered.append(float(loss))
    layers = list(model.model.layers)
    block = sum(p.numel() * 4 for p in layers[0].parameters())
    return {
        "losses": gathered,
        "most": most[0],
        "after": whole_bytes(model),
        "all": sum(p.numel() * 4 for p in model.parameters()),
        "block": block,
    }


def test_only_a_small_part_of_the_model_is_on_the_device_at_a_time():
    plain, giant = run_ranks(steps, 1, False)[0], run_ranks(steps, 1, True)[0]
    assert giant["losses"] == pytest.approx(plain["losses"], abs=1e-5)
    rest = giant["all"] - 16 * giant["block"]  # embedding, output and the last norm
    assert 0 < giant["most"] <= rest + 2 * giant["block"]  # the block at work, and the next one on its way
    assert (
        giant["most"] < 0.15 * giant["all"]
        # of the parameters alone; gradients and Adam's states are never there: of the 16 bytes for each
        # parameter, less than 4%
    )
    assert giant["after"] == 0


class Told(pl.Callback):
    "The loss of each step."

    def __init__(self):
        self.losses: list[float] = []

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.losses.append(float(outputs["loss"]))


def by_trainer(strategy: str | None) -> list:
    os.environ["WORLD_SIZE"] = "1"
    torch.manual_seed(0)
    module, told = CausalLM("llama", {"config": DEEP}, lr=1e-3), Told()
    tokens = torch.randint(0, 64, (24, 32), generator=torch.Generator().manual_seed(0))
    trainer = Trainer(max_epochs=1, callbacks=[told], **({"strategy": strategy} if strategy else {}), **QUIET)
    trainer.fit(module, DataLoader([{"input_ids": row} for row in tokens], 4))
    return [
        told.losses,
        type(trainer.strategy).__name__,
        any(isinstance(m, FSDPModule) for m in module.modules()),
    ]


def test_the_trainer_does_it_by_three_words():
    plain, giant = run_ranks(by_trainer, 1, None)[0], run_ranks(by_trainer, 1, "fsdp offload recompute")[0]
    assert not plain[2] and giant[2], (plain[1], giant[1])
    assert giant[0] == pytest.approx(plain[0], abs=1e-5) and giant[0][-1] < giant[0][0]


def on_the_gpu(cap: int) -> dict:
    "A model of five times the memory that the process may use."
    dist.init_process_group("cpu:gloo,cuda:nccl")
    torch.cuda.set_per_process_memory_fraction(cap / torch.cuda.get_device_properties(0).total_memory)
    torch.manual_seed(0)
    deep = {
        "num_hidden_layers": 40,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "vocab_size": 256,
    }
    layout = one_device(offload=True, recompute=True)
    model = load_transformer("causal-lm", "llama", config=deep, meta=True)
    states = 16 * sum(p.numel() for p in model.parameters())
    model = apply_layout(model, layout, make_mesh(layout, "cuda"), half=torch.bfloat16)
    optimiser, losses = torch.optim.AdamW(model.parameters(), 1e-4), []
    tokens = torch.randint(0, 256, (2, 256), device="cuda")
    for _ in range(4):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(float(loss))
    return {"states": states, "peak": torch.cuda.max_memory_allocated(), "losses": losses}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_gpu_trains_a_model_of_several_times_its_memory():
    cap = 2 * 10**9
    seen = run_ranks(on_the_gpu, 1, cap)[0]
    assert seen["states"] > 5 * cap and seen["peak"] <= cap and seen["losses"][-1] < seen["losses"][0], seen
