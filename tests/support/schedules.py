"""The order in which torch's own pipeline schedules work: what the pipeline tests compare with."""

from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

from fsdl_dev.parallel.pipeline import schedules

KINDS = {"F": "forward", "B": "backward"}


def schedule_order(schedule: str, ranks: int, microbatches: int) -> list[list[tuple[str, int]]]:
    'For each process: ("forward" or "backward", stage), in order.'
    orders = get_schedule_ops(schedules._CLASSES[schedule], ranks, microbatches, schedules.CHUNKS[schedule])
    seen = [[(one.computation_type.value, one.stage_index) for one in order if one] for order in orders]
    return [[(KINDS[kind], stage) for kind, stage in order if kind in KINDS] for order in seen]


def most_in_flight(actions: list[tuple[str, int]]) -> int:
    "The most microbatches of which a process holds the activations at once, counted for each of its stages."
    held = most = 0
    for kind, _ in actions:
        held += 1 if kind == "forward" else -1
        most = max(most, held)
    return most
