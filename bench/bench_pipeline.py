"""How long the processes of a pipeline wait: measured beside the formula, and our pipeline beside torch's
schedule written by hand.

python bench/bench_pipeline.py [--ranks 4] [--rounds 5] [--milliseconds 20] [--microbatches 4,8,16]

Every block sleeps for a known time in its forward pass and twice as long in its backward pass, and writes down
when, so that few cores are enough and what is not sleeping is waiting (or the schedule's own work and
messages). Both pipelines have the same blocks, are run in the same processes, in turns; which is first
alternates. The share of waiting is that of all processes from the step's first action to its last.
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)  # noqa: E402
from torch.nn.functional import mse_loss  # noqa: E402

from fsdl_dev.core.layout import SCHEDULES, Layout  # noqa: E402
from fsdl_dev.parallel.pipeline.schedules import CHUNKS, bubble_share  # noqa: E402
from fsdl_dev.parallel.pipeline.step import Pipeline, own_stages  # noqa: E402
from tests.ranks import run_ranks  # noqa: E402

LOG: list[tuple[float, float]] = []


class Sleep(torch.autograd.Function):
    "Passes its input on after a while."

    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        _sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        _sleep(2 * ctx.seconds)
        return gradient, None


def _sleep(seconds: float) -> None:
    start = time.perf_counter()
    time.sleep(seconds)
    LOG.append((start, time.perf_counter()))


class Block(nn.Module):
    "A block that takes a known time."

    def __init__(self, seconds: float):
        super().__init__()
        self.scale, self.seconds = nn.Parameter(torch.ones(())), seconds

    def forward(self, x):
        return Sleep.apply(x * self.scale, self.seconds)


def by_hand(schedule: str, ranks: int, pieces: int, seconds: float) -> tuple:
    "Torch's own classes as its tutorial uses them."
    rank = dist.get_rank()
    if schedule == "interleaved":
        stages = [
            PipelineStage(Block(seconds / 2), index, 2 * ranks, torch.device("cpu"))
            for index in (rank, rank + ranks)
        ]
        runner = ScheduleInterleaved1F1B(stages, pieces, loss_fn=mse_loss)
    else:
        kind = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}[schedule]
        stages = [
            PipelineStage(
                nn.Sequential(Block(seconds / 2), Block(seconds / 2)), rank, ranks, torch.device("cpu")
            )
        ]
        runner = kind(stages[0], pieces, loss_fn=mse_loss)

    def step(batch: tuple) -> None:
        for stage in stages:
            stage.submod.zero_grad()
        runner.step(
            *(batch[:1] if rank == 0 else ()),
            **({"target": batch[1], "losses": []} if rank == ranks - 1 else {}),
        )

    return step


def ours(schedule: str, ranks: int, pieces: int, seconds: float) -> tuple:
    layout = Layout(pipeline=ranks, schedule=schedule, microbatches=pieces)
    stages = own_stages(
        nn.Sequential(*[Block(seconds / 2) for _ in range(2 * ranks)]), layout, dist.get_rank()
    )
    pipeline = Pipeline(
        stages,
        layout,
        dist.group.WORLD,
        lambda batch: batch[0],
        lambda output, batch: mse_loss(output, batch[1]),
    )

    def step(batch: tuple) -> None:
        for stage in stages:
            stage.zero_grad()
        pipeline.step(batch).backward()

    return step


def measure(cases: list[tuple[str, int]], ranks: int, rounds: int, seconds: float) -> list[dict]:
    "In one rank: for each case, when it worked in each step of either pipeline."
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = []
    for schedule, pieces in cases:
        steps = {
            "ours": ours(schedule, ranks, pieces, seconds),
            "by hand": by_hand(schedule, ranks, pieces, seconds),
        }
        batch = (torch.randn(pieces, 4), torch.randn(pieces, 4))
        logs: dict[str, list] = {name: [] for name in steps}
        for number in range(rounds + 1):
            for name in list(steps)[:: 1 if number % 2 else -1]:
                dist.barrier()
                LOG.clear()
                steps[name](batch)
                if number:
                    logs[name].append(list(LOG))
        found.append(logs)
    return found


def idle_share(played: list[list[tuple]]) -> float:
    "The part of a step in which the processes wait, on average: each action is (start, end, ...), in seconds."
    actions = [action for process in played for action in process]
    length = max(end for _, end, *_ in actions) - min(start for start, *_ in actions)
    return 1 - sum(end - start for start, end, *_ in actions) / (length * len(played))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--milliseconds", type=float, default=20.0, help="forward pass of one microbatch on one process"
    )
    parser.add_argument("--microbatches", default="4,8,16")
    options = parser.parse_args()
    cases = [(schedule, int(pieces)) for pieces in options.microbatches.split(",") for schedule in SCHEDULES]
    results = run_ranks(
        measure,
        options.ranks,
        cases,
        options.ranks,
        options.rounds,
        options.milliseconds / 1000,
        timeout=1200,
    )
    print(
        f"{options.ranks} processes, {options.milliseconds:g} ms forward and {2 * options.milliseconds:g} ms"
        f" backward for a microbatch, medians of {options.rounds} steps"
    )
    print("schedule     microbatches   waiting by formula   measured   by hand   step: ours / by hand")
    for number, (schedule, pieces) in enumerate(cases):
        idle, length = {}, {}
        for name in ("ours", "by hand"):
            played = [
                [results[rank][number][name][step] for rank in range(options.ranks)]
                for step in range(options.rounds)
            ]
            idle[name] = statistics.median(idle_share(actions) for actions in played)
            length[name] = [
                max(a[-1][1] for a in actions) - min(a[0][0] for a in actions) for actions in played
            ]
        ratio = statistics.median(one / other for one, other in zip(length["ours"], length["by hand"]))
        formula = bubble_share(options.ranks, pieces, CHUNKS[schedule])
        print(
            f"{schedule:<12} {pieces:>12} {formula:>20.1%} {idle['ours']:>10.1%} {idle['by hand']:>9.1%}"
            f" {ratio:>22.3f}"
        )


if __name__ == "__main__":
    main()
