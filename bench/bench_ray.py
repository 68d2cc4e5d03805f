"""Launch to the first line of output on a Ray cluster: this project beside `ray job submit` and the bare REST
request, same command.

python bench/bench_ray.py [--rounds 5] [--only ours,"ray job submit"]

A cluster (a head and two workers on this machine) is started for it and ended again; needs `pip install
'ray[default]'`. Each round runs every launcher once, in turn, so that a busy machine is equally unkind to all.
Medians are printed, and ratios to `ray job submit`. All ask Ray for one processor, so that each entrypoint is
scheduled in the same way.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from side_by_side import chosen_names, make_project, measure, print_times, use_test_helpers


def ours(folder: Path, address: str, args: list[str]) -> None:
    """`fsdl_dev.launch` to a Ray target, snapshot unchanged since the warming round, and wait for the end by
    polling, as a card does.
    """
    import fsdl_dev
    from fsdl_dev.core.states import FINAL

    run = fsdl_dev.launch("trivial.py", args=args, folder=folder, on="lab", gpus=0, say=None)
    while run.target.poll(run.dir) not in FINAL:
        time.sleep(0.05)
    if run.state != "succeeded":
        raise SystemExit(f"our run failed: {run.failure}\n{run.dir.worker_log.read_text()}")


def ray_job_submit(folder: Path, address: str, args: list[str]) -> None:
    """Ray's own command."""
    command = [
        str(Path(sys.executable).with_name("ray")),
        "job",
        "submit",
        "--address",
        address,
        "--entrypoint-num-cpus",
        "1",
        "--",
        sys.executable,
        str(folder / "trivial.py"),
        *args,
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def request(folder: Path, address: str, args: list[str]) -> None:
    """The bare request, and wait for the end."""
    from fsdl_dev.engines.ray.client import RayCluster

    api, name = RayCluster(address), f"bench-{time.time_ns()}"
    api.submit(name, " ".join([sys.executable, str(folder / "trivial.py"), *args]), entrypoint_num_cpus=1)
    while api.job(name)["status"] in ("PENDING", "RUNNING"):
        time.sleep(0.05)


LAUNCHERS = {"ours": ours, "ray job submit": ray_job_submit, "bare request": request}


def seconds(start, folder: Path, address: str) -> float:
    """Seconds from the call to the script's first line."""
    stamp = folder / "stamp"
    stamp.unlink(missing_ok=True)
    began = time.time()
    start(folder, address, [str(stamp)])
    return float(stamp.read_text()) - began


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--only", default="", help="names of launchers, comma-separated")
    chosen = options.parse_args()
    use_test_helpers()
    from ray_cluster import RayCluster

    with tempfile.TemporaryDirectory() as name, RayCluster(workers=1) as cluster:
        folder = Path(name) / "project"
        make_project(
            folder, f'[tool.fsdl_dev.targets.lab]\nkind = "ray"\naddress = "{cluster.address}"\n', "stamp\n"
        )
        os.environ.update(FSDL_STATE=f"{name}/state", FSDL_STORE=f"{name}/store")
        os.environ.pop("RAY_ADDRESS", None)
        measures = {
            launcher: partial(seconds, LAUNCHERS[launcher], folder, cluster.address)
            for launcher in chosen_names(chosen.only, LAUNCHERS)
        }
        print_times(
            f"one process on Ray, launch to first line of output ({chosen.rounds} rounds, medians)",
            measure(measures, chosen.rounds),
            "ray job submit",
        )


if __name__ == "__main__":
    main()
