"""Slurm: launch to the first line of output beside raw sbatch and submitit, and the status of 500 runs by one
question.

python bench/bench_slurm.py [--rounds 15] [--runs 500] [--keep-cluster FOLDER --port PORT]

Starts a Slurm cluster of its own (as the tests do: tests/slurm_cluster.py) on this machine, or uses one that
runs. Each round runs every launcher once, in turn, so that a busy machine is equally unkind to all; the order
changes from round to round. Medians are printed, with the ratio to raw sbatch. Raw sbatch and submitit run the
same command with the same Python; the snapshot is there already. On a machine that is busy with other things,
run it under `chrt -r 1`: what is measured are a few tenths of a second.
"""

import argparse
import importlib.util
import os
import shlex
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from side_by_side import make_project, measure, print_times, use_test_helpers

PATIENCE = 60  # seconds


def wait_for(stamp: Path) -> float:
    """The moment that the script wrote down."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with suppress(OSError, ValueError):
            return float(stamp.read_text())
        time.sleep(0.01)
    raise SystemExit(f"no first line after {PATIENCE} s: {sorted(stamp.parent.rglob('*.log'))}")


def raw(folder: Path, stamp: Path) -> None:
    """sbatch of the same command."""
    command = f"#!/bin/sh\nexec {shlex.join(map(str, (sys.executable, folder / 'trivial.py', stamp)))}\n"
    subprocess.run(
        ["sbatch", "--parsable", "--output=/dev/null", "--time=5"],
        input=command,
        text=True,
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=folder,
    )


def submitit(folder: Path, stamp: Path) -> None:
    """submitit's Slurm executor."""
    import submitit as library

    executor = library.SlurmExecutor(folder=folder / "submitit", max_num_timeout=1)
    executor.update_parameters(time=5)
    executor.submit(library.helpers.CommandFunction([sys.executable, str(folder / "trivial.py"), str(stamp)]))


def ours(folder: Path, stamp: Path):
    """`fsdl_dev.launch` to a Slurm target, snapshot unchanged since the warming round."""
    import fsdl_dev

    return fsdl_dev.launch(
        "trivial.py", args=[str(stamp)], folder=folder, on="cluster", gpus=0, time="5m", say=None
    )


def idle() -> None:
    """Wait until the cluster has had nothing to do for a second, so that the scheduler is in the same state for all."""
    end = time.monotonic() + PATIENCE
    while (
        subprocess.run(["squeue", "-h"], capture_output=True, text=True).stdout.strip()
        and time.monotonic() < end
    ):
        time.sleep(0.05)
    time.sleep(1)


def seconds(start, folder: Path) -> float:
    """Seconds from the call to the script's first line, on a cluster that has nothing else to do."""
    idle()
    stamp = folder / "stamp"
    stamp.unlink(missing_ok=True)
    began = time.time()
    start(folder, stamp)
    return wait_for(stamp) - began


def first_line(folder: Path, rounds: int) -> None:
    """Print the medians of launch to first line."""
    launchers = {"raw sbatch": raw, "submitit": submitit, "ours": ours}
    if not importlib.util.find_spec("submitit"):
        print("submitit is not installed: left out (pip install submitit)")
        del launchers["submitit"]
    measures = {name: partial(seconds, start, folder) for name, start in launchers.items()}
    print_times(
        f"launch to first line of output ({rounds} rounds, medians)",
        measure(measures, rounds, rotate=True),
        "raw sbatch",
    )


def status(folder: Path, count: int) -> None:
    """Print how long the status of many runs takes, and how many questions it is."""
    from fsdl_dev.core.job import Job, LaunchRecord, Resources
    from fsdl_dev.core.rundir import create_run_dir, write_json
    from fsdl_dev.core.settings import find_project
    from fsdl_dev.engines.slurm.script import slurm_name
    from fsdl_dev.engines.target import get_target

    project = find_project(folder)
    target, runs = get_target("cluster", project), []
    for _ in range(count):
        run = create_run_dir(
            project.store,
            Job("script", "x", script="trivial.py", resources=Resources(procs=1, nodes=1)),
            LaunchRecord(target="cluster"),
        )
        script = (
            f"#!/bin/sh\n#SBATCH --job-name={slurm_name(run.id)}\n#SBATCH --output=/dev/null\n#SBATCH"
            " --time=5\n#SBATCH --exclusive\nsleep 60\n"
        )
        number = subprocess.run(
            ["sbatch", "--parsable"], input=script, capture_output=True, text=True, check=True
        ).stdout.strip()
        write_json(
            run.path / "engine.json",
            {"id": number, "job": slurm_name(run.id), "asked": {"gpus": 0, "nodes": 1}},
        )
        runs.append(run)
    asked, plain_run = [], target.engine.shell.run
    target.engine.shell.run = lambda command, **more: (asked.append(command), plain_run(command, **more))[1]
    times: dict[str, list[float]] = {"ours": [], "bare squeue": []}
    for _ in range(7):
        time.sleep(1.5)  # what is kept for a moment is too old by then
        asked.clear()
        began = time.perf_counter()
        seen = target.engine.poll(runs)
        times["ours"].append(time.perf_counter() - began)
        began = time.perf_counter()
        subprocess.run(["squeue", "-h", "-o", "%i %T"], capture_output=True)
        times["bare squeue"].append(time.perf_counter() - began)
    states = {
        state: sum(s.state == state for s in seen.values())
        for state in ("queued", "running", "unknown", "ended")
    }
    print_times(
        f"status of {count} runs ({len(times['ours'])} rounds, medians; {len(asked)} question(s) to Slurm for"
        f" all of them; {states})",
        times,
        "bare squeue",
    )
    subprocess.run(
        ["scancel", "--user=root" if os.geteuid() == 0 else f"--user={os.environ['USER']}"], check=False
    )


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--rounds", type=int, default=15, help="of the trivial job")
    options.add_argument("--runs", type=int, default=500, help="whose status is asked for")
    options.add_argument("--keep-cluster", default="", help="the folder of a cluster that runs (SLURM_BASE)")
    options.add_argument("--port", type=int, default=0, help="its first port")
    chosen = options.parse_args()
    use_test_helpers()
    from slurm_cluster import SlurmCluster, free_ports, missing

    if why := missing():
        raise SystemExit(f"no Slurm cluster can be started here: {why}")
    with tempfile.TemporaryDirectory() as name:
        base = Path(chosen.keep_cluster or f"{name}/cluster")
        base.mkdir(exist_ok=True)
        Path(name).chmod(0o755)
        cluster = SlurmCluster(base, chosen.port or free_ports())
        folder = Path(name) / "project"
        make_project(
            folder,
            '[project]\nname = "bench"\nversion = "0"\n[tool.fsdl_dev.targets.cluster]\nkind = "slurm"\n',
            "stamp*\nsubmitit\n",
        )
        try:
            cluster.up()
            os.environ.update(
                SLURM_CONF=str(cluster.conf), FSDL_STATE=f"{name}/state", FSDL_STORE=f"{name}/store"
            )
            if chosen.rounds:
                first_line(folder, chosen.rounds)
            if chosen.runs:
                status(folder, chosen.runs)
        finally:
            if not chosen.keep_cluster:
                cluster.purge()


if __name__ == "__main__":
    main()
