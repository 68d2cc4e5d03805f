"""Two processes: DDP, FSDP2 and tensor parallelism through our Trainer, against the same written by hand in
torch.

python bench/bench_parallel.py [--rounds 5] [--steps 40] [--hidden 256] [--only ddp,fsdp,tp]

All sides train the same llama on the same tokens in the same two processes, in turns; another one begins each
round. Ours is a whole run: CausalLM under Trainer(strategy=...) in a run directory, with its events, schedule,
stop handling and logging; only checkpoints are off. "by hand" is what torch's tutorials show, with AdamW as
torch makes it; "by hand, fused" has the AdamW that our module makes. (torch has no fused step for tensor
parallelism's mixture of cut and whole tensors: there both are the usual one.) Time is taken from the third step
to the last, each median is over the rounds. Prints the ratios of steps per second; the aim is at least 0.95.
"""

import argparse
import logging
import os
import statistics
import tempfile
import time
import warnings

from side_by_side import use_test_helpers

use_test_helpers()

from ranks import run_ranks  # noqa: E402  a test helper

SKIP = 2  # steps that warm up


def settings(hidden: int) -> dict:
    "A llama whose step takes tens of milliseconds on one core."
    return {
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "vocab_size": 512,
        "max_position_embeddings": 128,
    }


def tokens(steps: int, batch: int) -> list:
    import torch

    return [
        torch.randint(0, 512, (batch, 96), generator=torch.Generator().manual_seed(step))
        for step in range(steps)
    ]


def by_hand(
    kind: str, hidden: int, steps: int, fused: bool | None = None
) -> tuple[float, float]:  # steps per second, processor seconds of a step
    "A plain loop in torch."
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model, rank = LlamaForCausalLM(LlamaConfig(**settings(hidden))), dist.get_rank()
    net = model
    if kind == "ddp":
        net = torch.nn.parallel.DistributedDataParallel(model)
    elif kind == "fsdp":
        for block in model.model.layers:
            fully_shard(block)
        fully_shard(model)
    else:
        mesh = init_device_mesh("cpu", (2,))
        for block in model.model.layers:
            columns = (
                "self_attn.q_proj",
                "self_attn.k_proj",
                "self_attn.v_proj",
                "mlp.gate_proj",
                "mlp.up_proj",
            )
            parallelize_module(
                block,
                mesh,
                {
                    **{name: ColwiseParallel() for name in columns},
                    "self_attn.o_proj": RowwiseParallel(),
                    "mlp.down_proj": RowwiseParallel(),
                },
            )
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=fused)
    share = slice(None) if kind == "tp" else slice(rank, None, 2)
    for step, rows in enumerate(tokens(steps, 8)):
        if step == SKIP:
            start, busy = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        rows = rows[share]
        net(input_ids=rows, labels=rows).loss.backward()
        optimizer.step()
    return (steps - SKIP) / (time.perf_counter() - start), (time.process_time() - busy) / (steps - SKIP)


def ours(
    kind: str, hidden: int, steps: int
) -> tuple[float, float]:  # steps per second, processor seconds of a step
    "The cell that a user would write."
    import pytorch_lightning as pl
    import torch
    import torch.distributed as dist

    from fsdl_dev.train.text import CausalLM
    from fsdl_dev.train.trainer import Trainer

    class Clock(pl.Callback):
        def on_train_batch_start(self, trainer, module, batch, index):
            if index == SKIP:
                self.start, self.busy = time.perf_counter(), time.process_time()

        def on_train_batch_end(self, trainer, module, outputs, batch, index):
            if index == steps - 1:
                self.seconds, self.busy = time.perf_counter() - self.start, time.process_time() - self.busy

    torch.manual_seed(0)
    module, clock, rank = (
        CausalLM("llama", model_settings={"config": settings(hidden)}, lr=1e-3),
        Clock(),
        dist.get_rank(),
    )
    share = slice(None) if kind == "tp" else slice(rank, None, 2)
    loader = torch.utils.data.DataLoader(
        [{"input_ids": rows[share]} for rows in tokens(steps, 8)], batch_size=None
    )
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, 0)
    os.environ["FSDL_RUN_DIR"] = folder[0]
    trainer = Trainer(
        strategy=kind,
        max_steps=steps,
        accelerator="cpu",
        enable_model_summary=False,
        enable_checkpointing=False,
        use_distributed_sampler=False,
        callbacks=[clock],
    )
    trainer.fit(module, loader)
    return (steps - SKIP) / clock.seconds, clock.busy / (steps - SKIP)


def by_hand_fused(kind: str, hidden: int, steps: int) -> tuple[float, float]:
    return by_hand(kind, hidden, steps, fused=True)


def in_turns(kind: str, hidden: int, steps: int, rounds: int) -> dict[str, list[tuple[float, float]]]:
    "Of each side, in one rank: what each round showed."
    import torch.distributed as dist

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    dist.init_process_group("gloo")
    sides = {"ours": ours, "by hand": by_hand} | ({} if kind == "tp" else {"by hand, fused": by_hand_fused})
    names, found = list(sides), {name: [] for name in sides}
    for number in range(rounds + 1):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            dist.barrier()
            rate = sides[name](kind, hidden, steps if number else SKIP + 5)
            found[name] += [rate] if number else []
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--only", default="ddp,fsdp,tp")
    options = parser.parse_args()
    print(
        f"steps per second in two processes, {options.rounds} rounds of {options.steps} steps; aim: at least"
        " 0.95"
    )
    for kind in options.only.split(","):
        found = run_ranks(in_turns, 2, kind, options.hidden, options.steps, options.rounds, timeout=1800)[0]
        rates, costs = (
            {name: statistics.median(one[what] for one in rounds) for name, rounds in found.items()}
            for what in (0, 1)
        )
        print(
            f"  {kind:5} ours {rates['ours']:.2f}, {1000 * costs['ours']:.1f} ms of processor time a step",
            flush=True,
        )
        for name in list(found)[1:]:
            ratios = [mine / other for (mine, _), (other, _) in zip(found["ours"], found[name])]
            print(
                f"        {name:15} {rates[name]:7.2f} ({1000 / rates[name]:.0f} ms a step)   ratio of"
                f" medians {rates['ours'] / rates[name]:.3f}, median of each round's ratio"
                f" {statistics.median(ratios):.3f}   rounds {[round(ratio, 3) for ratio in ratios]}  "
                f" processor time {1000 * costs[name]:.1f} ms: ratio {costs[name] / costs['ours']:.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
