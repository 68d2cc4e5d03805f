"""How many planted late failures a rehearsal finds, how long it takes, and whether it refuses jobs that are good.

python bench/bench_rehearse.py [--planted] [--good] [--only WORDS] [--keep FILE.jsonl]

Each planted job trains and fails late, for one reason (tests/support/rehearsal_planted.py). Found: a failed check of
the rehearsal names that reason. A good job (tests/support/rehearsal_good.py) has no failed check. Each job is
rehearsed in a project of its own, with nothing in memory.
"""

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from rehearsal_good import GOOD, Good
from rehearsal_planted import PLANTED, Planted

from fsdl_dev.core.check import Check, failed_checks
from fsdl_dev.core.errors import FsdlError
from fsdl_dev.launcher.gates import all_gates
from fsdl_dev.launcher.prepare import prepare
from fsdl_dev.launcher.request import LaunchRequest


def rehearsed(
    what: str, folder: Path, best: str = "", args: tuple = (), **asked
) -> tuple[list[Check], float, float]:
    "The checks of a rehearsal, its seconds, and those of a processor."
    began, before = time.perf_counter(), processor_seconds()
    try:
        prepared = prepare(what, LaunchRequest(rehearse=True, **asked), folder=folder, args=args)
        launch = prepared.launch("check", no_test=True)
        launch.best = best
        launch.walk(all_gates())
        checks = [check for check in launch.checks if check.failed or check.name == "rehearsal"]
    except FsdlError as error:
        checks = failed_checks(error)
    return checks, round(time.perf_counter() - began, 1), round(processor_seconds() - before, 1)


def processor_seconds() -> float:
    "Of this process and of those that have ended below it."
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def judge_planted(job: Planted, folder: Path) -> dict:
    "Whether the failure of a planted job is found."
    (folder / "train.py").write_text(job.source)
    checks, seconds, cpu = rehearsed("train.py", folder, job.best)
    said = "\n".join(check.message for check in checks if check.failed and check.name == "rehearsal")
    found = bool(said) and job.says.lower() in said.lower()
    return {
        "name": job.name,
        "found": found,
        "seconds": seconds,
        "processor": cpu,
        "said": said or texts(checks),
    }


def judge_good(job: Good, folder: Path) -> dict:
    "Whether a good job is refused."
    for name, text in job.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    checks, seconds, cpu = rehearsed(job.what, folder, args=job.args, params=job.params)
    refused = any(check.failed for check in checks)
    warned = sum(check.verdict == "warn" for check in checks)
    return {
        "name": job.name,
        "refused": refused,
        "warned": warned,
        "seconds": seconds,
        "processor": cpu,
        "said": texts(checks),
    }


def texts(checks: list[Check]) -> str:
    return "\n".join(check.text() for check in checks)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--planted", action="store_true")
    parser.add_argument("--good", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    rows, done = [], set()
    if asked.keep and asked.keep.exists():  # of a bench that was stopped
        rows = [json.loads(line) for line in asked.keep.read_text().splitlines()]
        done = {row["name"] for row in rows}
    jobs = [
        *(PLANTED if asked.planted or not asked.good else ()),
        *(GOOD if asked.good or not asked.planted else ()),
    ]
    for job in jobs:
        if asked.only not in job.name or job.name in done:
            continue
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "pyproject.toml").write_text("[tool.fsdl_dev]\n")
            judge = judge_planted if isinstance(job, Planted) else judge_good
            row = judge(job, Path(folder))
        rows.append(row)
        told = {name: value for name, value in row.items() if name != "said"}
        print(json.dumps(told), flush=True)
        if row.get("found") is False or row.get("refused") or asked.only:
            print(row["said"], flush=True)
        if asked.keep:
            with open(asked.keep, "a") as file:
                file.write(json.dumps(row) + "\n")
    planted = [row for row in rows if "found" in row]
    good = [row for row in rows if "refused" in row]
    seconds = [row["seconds"] for row in rows]
    cpu = [row["processor"] for row in rows if "processor" in row]
    print(f"found {sum(row['found'] for row in planted)} of {len(planted)} planted failures")
    print(f"refused {sum(row['refused'] for row in good)} of {len(good)} good jobs")
    print(f"seconds: median {statistics.median(seconds)}, most {max(seconds)}")
    print(f"of a processor: median {statistics.median(cpu)}, most {max(cpu)}")


if __name__ == "__main__":
    main()
