"""Run all that needs a GPU, in under nine minutes: one table, printed and written as JSON.

usage: gpu.py [--json PATH] [--only NAME,...] [--budget SECONDS] [--wheels FOLDER] [--cpu]

Each row runs in a process of its own with a time limit of its own (bench/gpu_rows.py), so that a row which
hangs or fails costs no other. Checks run first, several at a time; measurements follow, one at a time, the
most valuable first. Rows for which the budget leaves no time are skipped. The rows use the packages of the
Python that runs this file; the project's packages that are missing are listed. `--wheels` installs the wheels
of a folder beside them, for this command only and without a network. `--cpu` is a smoke run without a GPU:
every row with tiny sizes, whose figures mean nothing.

Exit status: 0, 1 where a row failed, 2 where there is no GPU.
"""

import argparse
import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".fsdl" / "gpu"  # git ignores it
MARK = "FSDL_GPU_ROW"  # in the environment of all processes of a row
SMALLEST = 15.0  # seconds: less is not enough to start a row
LOOK = """
import json, torch
count = torch.cuda.device_count() if torch.cuda.is_available() else 0
names = [torch.cuda.get_device_name(i) for i in range(count)]
print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "gpus": names}))
"""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str  # a function of bench/gpu_rows.py, with its argument after a colon
    what: str
    limit: float  # seconds
    alone: bool = True  # a measurement that nothing else may disturb

    def command(self, result: Path, cpu: bool) -> list[str]:
        rows = str(ROOT / "bench" / "gpu_rows.py")
        return [sys.executable, rows, self.name, str(result), *(["--cpu"] if cpu else [])]

    def ended(self, status: str, result: str) -> dict:
        return {"name": self.name, "what": self.what, "status": status, "figure": None, "result": result}


MEASUREMENTS = (
    Row("device", "bf16 product and copy of the device", 60),
    Row("gpt2", "GPT-2 124M : nanoGPT's recipe", 200),
    Row("vit", "ViT-B/16 : timm's loop, same loader", 120),
    Row("loop", "our Trainer : a raw loop, 50 ms a step", 120),
    Row("recovery", "kill -9 of a rank to a step done again", 150),
    Row("compiled", "torch.compile : eager, GPT-2 124M", 120),
    Row("attention", "flash attention : MATH backend", 60),
    Row("bf16", "our Trainer's default : float32", 90),
)
CHECKS = (
    Row("memory", "planned peak memory : allocator's peak", 120, alone=False),
    Row("nccl", "collectives, DDP and FSDP2 on one device", 60, alone=False),
)


def notebooks() -> list[str]:
    """The notebooks that have cells flagged cuda, the shortest first."""
    found = []
    for path in (ROOT / "nbs").rglob("*.ipynb"):
        cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
        if any(re.match(r"#\|\s*cuda\s*$", line) for cell in cells for line in cell["source"]):
            found.append(path)
    return [path.relative_to(ROOT).as_posix() for path in sorted(found, key=lambda path: path.stat().st_size)]


def choose_rows(only: str, cpu: bool) -> list[Row]:
    """Checks, then measurements. A smoke run takes one notebook: the test suite runs them all on a CPU."""
    cells = [Row(f"cells:{path}", "cells flagged cuda", 120, alone=False) for path in notebooks()]
    rows = [*(cells[:1] if cpu else cells), *CHECKS, *MEASUREMENTS]
    return [row for row in rows if not only or any(part in row.name for part in only.split(","))]


def look_for_gpu() -> dict:
    """What this Python's torch sees; `problem` says why that is no GPU."""
    asked = subprocess.run([sys.executable, "-c", LOOK], check=False, capture_output=True, text=True)
    if asked.returncode:
        return {"problem": f"{sys.executable} cannot import torch"}
    found = json.loads(asked.stdout.splitlines()[-1])
    if not found["gpus"]:
        found["problem"] = "torch sees none" if found["cuda"] else f"torch {found['torch']} is built for CPUs"
    return found


def missing_packages() -> list[str]:
    """What pyproject.toml lists, and the notebooks need, and this Python does not have."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    missing = []
    for name in [*(re.match(r"[\w.-]+", line)[0] for line in wanted), "nbdev", "fastcore"]:
        try:
            importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    return missing


def set_import_path(wheels: Path | None) -> None:
    """Let all rows import the checkout first, then the packages of a folder of wheels."""
    paths, site = [str(ROOT)], FOLDER / "site"
    if wheels:
        shutil.rmtree(site, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile"]
        subprocess.run([*pip, "--target", str(site), *map(str, sorted(wheels.glob("*.whl")))], check=True)
        paths.append(str(site))
    sys.path[1:1] = paths
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])


def end_processes(mark: str) -> None:
    """Kill what a row has left behind, in whatever session: it would hold the device's memory."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={mark}\0".encode() in path.read_bytes():
                os.kill(int(path.parent.name), signal.SIGKILL)
        except OSError:
            continue  # it has ended, or is another user's


def last_line(log: Path) -> str:
    """What a row said last."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][-160:] if lines else "no output"


def run_row(row: Row, limit: float, folder: Path, cpu: bool = False) -> dict:
    """Run one row to its end or to its limit. Raises nothing for what the row does."""
    stem = folder / re.sub(r"\W+", "_", row.name)
    log, result, mark = stem.with_suffix(".log"), stem.with_suffix(".json"), f"{os.getpid()}-{stem.name}"
    result.unlink(missing_ok=True)
    here = {**os.environ, MARK: mark, "PYTHONUNBUFFERED": "1", "WANDB_MODE": "offline"}
    began, over = time.monotonic(), ""
    with log.open("wb") as sink:
        child = subprocess.Popen(
            row.command(result, cpu), cwd=ROOT, env=here, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink
        )
        try:
            child.wait(limit)
        except subprocess.TimeoutExpired:
            over = f"no result in {limit:.0f} s"
            child.kill()
        end_processes(mark)
        code = child.wait()
    if not over and not code and result.exists():
        found = row.ended("failed", "") | json.loads(result.read_text())
    else:
        found = row.ended("failed", f"{over or f'exit status {code}'}; {last_line(log)} ({log})")
    return found | {"seconds": round(time.monotonic() - began, 1)}


class Report:
    """The table: each row printed when it ends, and written as JSON with those before it."""

    def __init__(self, path: Path, facts: dict):
        self.path, self.facts, self.rows, self.began = path, facts, [], time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def say(self, text: str) -> None:
        print(f"[{self.seconds:4.0f} s] {text}", flush=True)

    def add(self, row: dict) -> None:
        self.rows.append(row)
        self.say(f"{row['status']} {row['name']}: {row['result']}")
        whole = self.facts | {"seconds": round(self.seconds, 1), "rows": self.rows}
        self.path.write_text(json.dumps(whole, indent=1))

    def show(self) -> None:
        names, texts = (max(len(row[key]) for row in self.rows) for key in ("name", "what"))
        print(f"\n{'':<8}{'row':<{names}}  {'what':<{texts}} {'figure':>8}  result")
        for row in self.rows:
            figure = "" if row["figure"] is None else f"{row['figure']:.4g}"
            start = f"{row['status']:<8}{row['name']:<{names}}  {row['what']:<{texts}}"
            print(f"{start} {figure:>8}  {row['result']}")
        states = [row["status"] for row in self.rows]
        counts = ", ".join(f"{states.count(state)} {state}" for state in ("passed", "failed", "skipped"))
        print(f"{counts}, in {self.seconds:.0f} s; written to {self.path}")


def run_rows(rows: list[Row], report: Report, budget: float, cpu: bool, at_once: int) -> None:
    """Run the rows in this order, as many at once as is asked, until the budget is used up."""
    running: dict[str, float] = {}

    def one(row: Row) -> dict:
        left = budget - report.seconds
        if left < SMALLEST:
            return row.ended("skipped", f"no time is left of {budget:.0f} s")
        running[row.name] = report.seconds
        try:
            return run_row(row, min(3 * row.limit if cpu else row.limit, left), report.path.parent, cpu)
        finally:
            del running[row.name]

    pool = ThreadPoolExecutor(at_once)
    try:
        pending = {pool.submit(one, row) for row in rows}
        while pending:
            done, pending = wait(pending, timeout=20, return_when="FIRST_COMPLETED")
            for future in done:
                report.add(future.result())
            if not done:
                names = (f"{name} ({report.seconds - since:.0f} s)" for name, since in list(running.items()))
                report.say(f"running: {', '.join(names)}")
    finally:
        pool.shutdown(cancel_futures=True)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS
    )
    parser.add_argument(
        "--json", type=Path, default=FOLDER / "gpu.json", help="the table; logs lie beside it"
    )
    parser.add_argument("--only", default="", help="rows by a part of their name, comma-separated")
    parser.add_argument("--budget", type=float, default=530, help="seconds for all rows")
    parser.add_argument("--wheels", type=Path, help="a folder of wheels to install for this command")
    parser.add_argument("--cpu", action="store_true", help="a smoke run: tiny sizes on a CPU")
    return parser.parse_args()


def main() -> int:
    options = read_options()
    rows = choose_rows(options.only, options.cpu)
    for folder in (FOLDER, options.json.absolute().parent):
        folder.mkdir(parents=True, exist_ok=True)
    set_import_path(options.wheels)
    if options.cpu:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # it shares its machine with other tests
    seen = look_for_gpu()
    if "problem" in seen and not options.cpu:
        names = ", ".join(row.name for row in rows)
        print(f"no GPU ({seen['problem']}); with one, this runs: {names}", file=sys.stderr)
        return 2
    missing = missing_packages()
    head = subprocess.run(["git", "rev-parse", "HEAD"], check=False, cwd=ROOT, capture_output=True, text=True)
    facts = {"smoke": options.cpu, "commit": head.stdout.strip(), "date": time.strftime("%F %T")}
    report = Report(
        options.json.absolute(), facts | {"python": sys.version.split()[0], "missing": missing} | seen
    )
    smoke = "SMOKE RUN ON A CPU: tiny sizes, no figure means anything"
    report.say(smoke if options.cpu else f"{', '.join(seen['gpus'])}, torch {seen['torch']}")
    if missing:
        report.say(f"missing packages: {' '.join(missing)}")
    try:
        for alone in (False, True):
            at_once = 1 if alone else 2 if options.cpu else 4
            run_rows(
                [row for row in rows if row.alone == alone], report, options.budget, options.cpu, at_once
            )
    except KeyboardInterrupt:
        report.say("interrupted")
    if report.rows:
        report.show()
    return int(len(report.rows) < len(rows) or any(row["status"] == "failed" for row in report.rows))


if __name__ == "__main__":
    sys.exit(main())
