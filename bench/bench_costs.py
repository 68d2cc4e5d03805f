"""What 100,000 runs cost by owner, family, target and cause, beside pandas on the same table.

python bench/bench_costs.py [--runs 100000] [--repeat 5]

Ours is `fsdl costs`: the index of runs, caught up, one question. Pandas reads the runs from a CSV file, as a script
would on an export, and groups them; its reading is timed apart. Each number is the smallest, in seconds.
"""

import argparse
import random
import tempfile
import time
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path

import pandas

from fsdl_dev.records.search.index import index_entry, index_on_disk, put_entry
from fsdl_dev.records.search.store import RunStore
from fsdl_dev.records.table import RunRow


def make_index(store: Path, count: int) -> list[dict]:
    "An index of runs that have ended, and the same rows as a table."
    (store / "runs").mkdir()
    index, names, draw, rows = index_on_disk(store / "runs.sqlite"), {}, random.Random(0), []
    index.execute("BEGIN")
    for number in range(count):
        moment = datetime(2026, 1, 1) + timedelta(seconds=60 * number)
        state = draw.choice(["succeeded", "succeeded", "failed", "cancelled"])
        why = "" if state == "succeeded" else draw.choice(["oom", "code", "cancelled"])
        tags = {"owner": f"u{number % 40}", "model": f"m{number % 9}"}
        own = {"job": f"train{number % 7}.py", "name": f"t{number % 7}", "failure": why, "tags": tags}
        spent = {"cost": draw.random() * 10, "currency": "USD", "slot_hours": draw.random(), "seconds": 10.0}
        row = RunRow(f"{moment:%Y%m%d-%H%M%S}000-otter-{number}", state, **own, **spent)
        put_entry(index, index_entry(asdict(row) | {"links": []}), names)
        rows.append({**tags, "state": state, "cause": why or state, "target": row.target, **spent})
    time.sleep(2.5)  # a folder that changed a moment ago is listed again
    index.execute("DELETE FROM listed")
    index.execute("INSERT INTO listed VALUES (?)", ((store / "runs").stat().st_mtime_ns,))
    index.commit()
    index.close()
    return rows


def best(call, repeat: int) -> float:
    "The smallest time of some calls."
    times = []
    for _ in range(repeat):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)


def by_pandas(table: pandas.DataFrame, by: str) -> pandas.DataFrame:
    "The same question on a table."
    parts = table.groupby([by, "state", "cause", "currency"], dropna=False)
    return parts.agg(runs=("cost", "size"), cost=("cost", "sum"), hours=("slot_hours", "sum"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = make_index(Path(folder), asked.runs)
        file = Path(folder, "runs.csv")
        pandas.DataFrame(rows).to_csv(file, index=False)
        reading = best(lambda: pandas.read_csv(file), asked.repeat)
        table, store = pandas.read_csv(file), RunStore(folder)
        print(f"{asked.runs:,} runs; pandas reads their CSV in {reading:.3f} s")
        for by, column in (("owner", "owner"), ("family", "model"), ("target", "target"), ("cause", "cause")):
            began = time.perf_counter()
            found = store.costs(by)
            first = time.perf_counter() - began
            ours = best(lambda by=by: store.costs(by), asked.repeat)
            theirs = best(lambda column=column: by_pandas(table, column), asked.repeat)
            assert sum(one.runs for one in found.groups) == asked.runs
            told = f"first {first:.3f}, then {ours:.3f}; pandas {theirs:.3f}, with its reading {theirs + reading:.3f}"
            print(f"  by {by:<7} {told}; ratio {ours / (theirs + reading):.2f}")


if __name__ == "__main__":
    main()
