"""What a price, a cap and a budget add to a launch, and what the meter costs a run while it goes on.

python bench/bench_limits.py [--rounds 30] [--earlier 200]

A launch is timed from its request to the run directory being handed over, in one process, in turn with and without
limits; what is compared with the aim of 10 ms is the median of the differences of neighbours. The budget has a ledger
with `--earlier` launches in it, some of which still run. A tick of the meter, which a worker does every two seconds, is
timed alone and with others in the same pot.
"""

import argparse
import os
import statistics
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from side_by_side import make_project, measure, print_times

import fsdl_dev
from fsdl_dev.core.event_kinds import Meter as Reading
from fsdl_dev.core.event_kinds import State
from fsdl_dev.core.job import Job, LaunchRecord
from fsdl_dev.core.rundir import create_run_dir
from fsdl_dev.core.settings import find_project, open_store
from fsdl_dev.core.units import Money
from fsdl_dev.launcher.limits import ledger_of
from fsdl_dev.money.budgets import Budget, Share
from fsdl_dev.money.limits import Limit, limits_to_json, price_to_json
from fsdl_dev.money.meter import Pot, run_meter
from fsdl_dev.money.price import Price

LIMITS = '[tool.fsdl_dev.prices]\ntest = 2.5\n[tool.fsdl_dev.budgets]\nnight = "100000 USD"\n'
NIGHT = Share(Budget("night", "money", 100_000.0, "USD"))
AIM = 0.010  # seconds


def earlier_launches(folder: Path, count: int, budget: bool) -> None:
    """Runs, and a ledger of them, as weeks of launches leave them: most have ended, every twentieth still runs."""
    project = find_project(folder)
    ledger, store = ledger_of(project), open_store(project)
    for number in range(count):
        drawn = ledger.reserve([(NIGHT, 1.0)]) if budget else []
        record = LaunchRecord(target="test", budgets=tuple(asdict(draw) for draw in drawn))
        run = create_run_dir(store, Job("script", "trivial.py", script="trivial.py"), record)
        worker = run.writer("worker")
        worker.write(State(state="running", reason="example"))
        worker.write(Reading(seconds=60.0, slot_seconds=60.0, cost=0.5, currency="USD"))
        if number % 20:
            worker.write(State(state="succeeded", reason="example"))
        worker.close()
        if drawn:
            ledger.attach(drawn, [run])
    if budget:
        ledger.settle()


def launch_seconds(folder: Path, store: Path, processor: list[float], **asked) -> float:
    """Seconds until a launch has handed its run over; those of the processor are noted, too. The run ends before the
    next one begins.
    """
    os.environ["FSDL_STORE"] = str(store)
    began, computed = time.perf_counter(), time.process_time()
    run = fsdl_dev.launch(
        "trivial.py", args=[str(folder / "stamp")], folder=folder, on="test", gpus=0, say=None, **asked
    )
    seconds = time.perf_counter() - began
    processor.append(time.process_time() - computed)
    run.wait(timeout=120, progress=False)
    return seconds


def launches(here: Path, rounds: int, earlier: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds of each launch, and those of the processor."""
    stores = {name: here / f"{name}-store" for name in ("plain", "limits")}
    make_project(here / "plain")
    make_project(here / "limits", LIMITS)
    for name, store in stores.items():
        os.environ["FSDL_STORE"] = str(store)
        earlier_launches(here / name, earlier, budget=name == "limits")
    names = ("without", "price, cap and budget")
    processor: dict[str, list[float]] = {name: [] for name in names}
    asked = {"max_cost": "5", "budget": "night"}
    plain = lambda: launch_seconds(here / "plain", stores["plain"], processor[names[0]])
    limits = lambda: launch_seconds(here / "limits", stores["limits"], processor[names[1]], **asked)
    times = measure(dict(zip(names, (plain, limits))), rounds, rotate=True)
    return times, {name: seconds[1:] for name, seconds in processor.items()}


def ticks(here: Path, rounds: int) -> dict[str, list[float]]:
    """Seconds of a tick with so many other runs in the pot."""
    found = {}
    for others in (0, 10, 100):
        store = here / f"pot{others}"
        limit = Limit("money", 1e6, "USD", "--max-cost 1000000", pot="a pot")
        own = LaunchRecord(
            limits=tuple(limits_to_json([limit])), price=price_to_json(Price(Money(2.5, "USD")))
        )
        run = create_run_dir(store, Job("script", "trivial.py", script="trivial.py"), own)
        for number in range(others):
            Pot(limit.folder_in(store), f"other{number}").write(1.0, 2.5)
        meter = run_meter(run, run.writer("worker"), store)
        meter.start(1, gpus=False)
        times = []
        for _ in range(rounds):
            meter._written = -1e9  # noqa: SLF001  each writes
            began = time.perf_counter()
            meter.tick()
            times.append(time.perf_counter() - began)
        found[f"a tick, {others} others"] = times
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--earlier", type=int, default=200, help="launches that the ledger has already")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-limits-") as folder:
        for what, times in zip(("", ", processor"), launches(Path(folder), asked.rounds, asked.earlier)):
            print_times(f"a launch{what}, {asked.earlier} earlier ones in the ledger", times, base="without")
            more = statistics.median(more - less for less, more in zip(*times.values()))
            verdict = "within" if more <= AIM else "MISSES"
            aim = f"{verdict} the aim of {1000 * AIM:.0f} ms"
            print(f"median of the paired differences: {1000 * more:.1f} ms, {aim}")
        print_times("the meter", ticks(Path(folder), 200))


if __name__ == "__main__":
    main()
