"""Every layout in a plain torch loop on real processes: the losses and the final weights of one process, and
the bytes that theory gives.
"""

import functools

import pytest
import torch
import torch.distributed as dist
from choices import first_of_all
from ranks import RankFailure, run_ranks
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.tensor import DTensor

from fsdl_dev.core.layout import read_layout
from fsdl_dev.parallel.apply import apply_layout, data_group, make_mesh
from fsdl_dev.parallel.blocks import cut_parameters
from fsdl_dev.parallel.sharding import clip_norm, shard_optimizer

BATCH, STEPS = 8, 4
SETTINGS = {
    "llama": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 8,
        "num_key_value_heads": 4, "vocab_size": 96, "max_position_embeddings": 64},
    "qwen2": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 4, "vocab_size": 96, "max_position_embeddings": 64},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 96, "n_positions": 32, "attn_pdrop": 0.0,
        "embd_pdrop": 0.0, "resid_pdrop": 0.0},
}  # fmt: skip


def make_model(kind: str, meta: bool = False) -> torch.nn.Module:
    "A small model with the weights of seed 0."
    torch.manual_seed(0)
    if kind == "vit":
        import timm

        return timm.create_model(
            "vit_tiny_patch16_224",
            img_size=32,
            patch_size=8,
            depth=3,
            embed_dim=64,
            num_heads=4,
            num_classes=10,
            init_values=0.1,
        )
    from fsdl_dev.models.transformers import load_transformer

    return load_transformer("causal-lm", kind, config=SETTINGS[kind], meta=meta)


def batches(kind: str) -> list:
    "The same batches in every process."
    generator = torch.Generator().manual_seed(1)
    if kind == "vit":
        return [
            (
                torch.randn(BATCH, 3, 32, 32, generator=generator),
                torch.randint(0, 10, (BATCH,), generator=generator),
            )
            for _ in range(STEPS)
        ]
    return [torch.randint(0, 96, (BATCH, 24), generator=generator) for _ in range(STEPS)]


def loss_of(kind: str, model: torch.nn.Module, batch: object) -> torch.Tensor:
    if kind == "vit":
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
    return model(input_ids=batch, labels=batch).loss


def share(batch: object, layout, rank: int) -> object:
    "The samples of a batch that a process reads."
    if isinstance(batch, tuple):
        return tuple(share(part, layout, rank) for part in batch)
    place = layout.place(rank)
    return batch.chunk(layout.data)[place["replicate"] * layout.shard + place["shard"]]


def held(tensors) -> int:
    "Bytes that a process really holds."
    local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    return sum(tensor.numel() * tensor.element_size() for tensor in local)


def train(
    kind: str,
    text: str,
    world: int,
    half: bool = False,
    meta: bool = False,
    clip: float = 0.5,
    seed: int | None = None,
) -> dict:
    "Some steps in this process, as a person with a plain torch loop would write them."
    layout = read_layout(text, world)
    if world > 1:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if world > 1 else 0
    model = make_model(kind, meta)
    if seed is not None and rank:  # other weights than the first process's: they must not matter
        torch.manual_seed(seed + rank)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter)
    mesh = make_mesh(layout) if world > 1 else None
    net = apply_layout(model, layout, mesh, half=torch.bfloat16 if half else None)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    if layout.zero == 1:
        optimizer = shard_optimizer(optimizer, [schedule])
    group = data_group(layout, mesh) if mesh is not None else None
    losses, norms = [], []
    for batch in batches(kind):
        optimizer.zero_grad()
        loss = loss_of(kind, net, share(batch, layout, rank))
        loss.backward()
        norms.append(clip_norm(net.parameters(), clip).item())
        optimizer.step()
        schedule.step()
        mean = loss.detach().clone()
        if group is not None:
            dist.all_reduce(mean, group=group)
        losses.append(mean.item() / layout.data)
    weights = (
        get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        if world > 1
        else model.state_dict()
    )
    inner = optimizer.optim if layout.zero == 1 else optimizer
    states = [
        value
        for state in inner.state.values()
        for value in state.values()
        if torch.is_tensor(value) and value.dim()
    ]
    return {
        "losses": losses, "norms": norms, "weights": dict(weights) if rank == 0 else None,
        "parameters": held(model.parameters()),
        "gradients": held(p.grad for p in model.parameters() if p.grad is not None), "optimizer": held(states),
        "devices": {p.device.type for p in model.parameters()},
    }  # fmt: skip


@functools.cache
def alone(kind: str) -> dict:
    "The training in one process."
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return train(kind, "one", 1)
    finally:
        torch.set_num_threads(threads)


def assert_same(result: list[dict], one: dict, tolerance: float = 2e-5, weights: float = 2e-4) -> None:
    "Losses, norms and final weights of one process; every rank says the same."
    for mine in result:
        assert mine["losses"] == pytest.approx(one["losses"], abs=tolerance)
        assert mine["norms"] == pytest.approx(one["norms"], rel=max(1e-4, tolerance))
    final = result[0]["weights"]
    assert final.keys() == one["weights"].keys()
    worst = max((final[name] - one["weights"][name]).abs().max().item() for name in final)
    assert worst < weights, worst


LAYOUTS = [
    ("ddp", 2), ("zero1", 2), ("zero2", 2), ("fsdp", 2), ("fsdp offload", 2), ("fsdp recompute", 2),
    ("ddp recompute", 2), ("tp", 2), ("tp recompute", 2),
    ("fsdp", 4), ("ddp=2 fsdp=2", 4), ("fsdp=2 tp=2", 4), ("fsdp=2 tp=2 recompute", 4), ("ddp=2 tp=2", 4), ("tp", 4),
]  # fmt: skip


# the layouts whose bytes are held against theory
HELD = ("ddp", "zero1", "fsdp", "ddp=2 fsdp=2", "ddp=2 tp=2", "tp", "fsdp=2 tp=2")


def expected_bytes(kind: str, text: str, world: int) -> dict[str, int]:
    """What the first process should hold by ZeRO's arithmetic (Rajbhandari et al.

    2020, figure 1) and the tensors that tensor parallelism cuts.
    """
    layout, model = read_layout(text, world), make_model(kind)
    cut = cut_parameters(model) if layout.tensor > 1 else set()
    own = {
        name: parameter.numel() // (layout.tensor if name in cut else 1)
        for name, parameter in model.named_parameters()
    }
    shares = {
        "parameters": layout.shard,
        "gradients": layout.shard,
        "optimizer": layout.shard * (layout.replicate if layout.zero == 1 else 1),
    }
    return {
        name: sum(own.values()) * (8 if name == "optimizer" else 4) // divisor
        for name, divisor in shares.items()
    }


QUICK = [
    *[("llama", *layout) for layout in LAYOUTS if layout[0] not in ("fsdp recompute", "ddp recompute",
        "fsdp=2 tp=2") and layout not in (("fsdp", 4), ("tp", 4))],
    ("gpt2", "fsdp", 2), ("gpt2", "fsdp=2 tp=2", 4), ("vit", "tp", 2),
]  # fmt: skip
LATER = [("llama", *layout) for layout in LAYOUTS if layout[1] == 4 and ("llama", *layout) in QUICK]
REST = [
    (kind, *layout) for kind in ("llama", "gpt2", "vit") for layout in LAYOUTS if (kind, *layout) not in QUICK
]


@pytest.mark.tier("long", "*tp=2-4")
@pytest.mark.parametrize(
    "kind, text, world", first_of_all([case for case in QUICK if case not in LATER], REST, LATER)
)
def test_a_layout_trains_as_one_process_does_and_holds_what_theory_says(kind, text, world):
    results = run_ranks(train, world, kind, text, world)
    assert_same(results, alone(kind))
    if kind == "llama" and text in HELD:
        for name, size in expected_bytes("llama", text, world).items():
            total = sum(result[name] for result in results) / world
            assert total == pytest.approx(
                size, rel=0.01 if name != "optimizer" or "zero1" not in text else 0.05
            ), name
    if "offload" in text:
        assert results[1]["devices"] == {"cpu"}, "offloaded parameters rest in the host's memory"


@pytest.mark.slow
def test_qwen2_with_biases_is_cut_as_llama_is():
    assert_same(run_ranks(train, 4, "qwen2", "fsdp=2 tp=2", 4), alone("qwen2"))


@pytest.mark.parametrize("text, world", first_of_all([("fsdp", 2)], [], [("fsdp=2 tp=2", 4)]))
def test_half_precision_stays_near(text, world):
    "Blocks compute in bfloat16 (8 bits of precision), gradients are summed and weights kept in float32."
    result, one = run_ranks(train, world, "llama", text, world, True), alone("llama")
    assert result[0]["losses"] == pytest.approx(one["losses"], abs=0.02)
    assert result[0]["losses"] != one["losses"] and all(
        weight.dtype == torch.float32 for weight in result[0]["weights"].values()
    )


@pytest.mark.parametrize("text, world", first_of_all([("tp", 2)], [("fsdp", 2)], [("ddp=2 fsdp=2", 4)]))
def test_the_first_process_decides_the_weights_to_begin_with(text, world):
    assert_same(run_ranks(train, world, "llama", text, world, False, False, 0.5, 7), alone("llama"))


@functools.cache
def without_memory(kind: str) -> list[dict]:
    "A model whose weights are made after it was cut, in two processes that hold all of it."
    return run_ranks(train, 2, kind, "ddp", 2, False, True)


@pytest.mark.tier("long", "llama-fsdp=2 tp=2-4")
@pytest.mark.parametrize(
    "kind, text, world",
    first_of_all(
        [("llama", "fsdp=2 tp=2", 4)],
        [("llama", "fsdp", 2), ("llama", "ddp=2 fsdp=2", 4), ("gpt2", "fsdp", 2), ("gpt2", "fsdp=2 tp=2", 4)],
        [("gpt2", "ddp=2 fsdp=2", 4)],
    ),
)
def test_a_model_without_memory_begins_alike_on_every_layout(kind, text, world):
    whole = without_memory(kind)
    assert_same(
        run_ranks(train, world, kind, text, world, False, True), whole[0] | {"weights": whole[0]["weights"]}
    )
    assert whole[0]["losses"][0] == pytest.approx(alone(kind)["losses"][0], abs=0.2), (
        "as Transformers would begin"
    )


@pytest.mark.parametrize("kind, text, world, words", first_of_all(
    [("vit", "tp=8", 8, "8 does not divide the heads of this model, which has 4 attention heads")], [],
    [("llama", "tp=8", 8, "8 attention heads and 4 key-value heads")],
))  # fmt: skip
def test_heads_that_cannot_be_shared_out_are_refused(kind, text, world, words):
    with pytest.raises(RankFailure, match=words):
        run_ranks(train, world, kind, text, world)
