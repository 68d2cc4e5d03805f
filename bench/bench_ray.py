"""Launch to the first line of output on a Ray cluster: this project beside `ray job submit` and the bare REST request, same command.

    python bench/bench_ray.py [--rounds 5] [--only ours,"ray job submit"]

A cluster (a head and two workers on this machine) is started for it and ended again; needs `pip install 'ray[default]'`. Each round runs every
launcher once, in turn, so that a busy machine is equally unkind to all. Medians are printed, and ratios to `ray job submit`. All ask Ray for one
processor, so that each entrypoint is scheduled in the same way.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
TRIVIAL = "import sys, time\nopen(sys.argv[1], 'w').write(repr(time.time()))\nprint('first line', flush=True)\n"


def ours(folder: Path, address: str, args: list[str]) -> None:
    """`fsdl_dev.launch` to a Ray target, snapshot unchanged since the warming round, and wait for the end by polling, as a card does."""
    import fsdl_dev
    from fsdl_dev.core.states import FINAL

    run = fsdl_dev.launch("trivial.py", args=args, folder=folder, on="lab", gpus=0, say=None)
    while run.target.poll(run.dir) not in FINAL:
        time.sleep(0.05)
    if run.state != "succeeded":
        raise SystemExit(f"our run failed: {run.failure}\n{run.dir.worker_log.read_text()}")


def ray_job_submit(folder: Path, address: str, args: list[str]) -> None:
    """Ray's own command."""
    command = [str(Path(sys.executable).with_name("ray")), "job", "submit", "--address", address, "--entrypoint-num-cpus", "1", "--",
               sys.executable, str(folder / "trivial.py"), *args]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def request(folder: Path, address: str, args: list[str]) -> None:
    """The bare request, and wait for the end."""
    from fsdl_dev.targets.ray_api import RayCluster

    api, name = RayCluster(address), f"bench-{time.time_ns()}"
    api.submit(name, " ".join([sys.executable, str(folder / "trivial.py"), *args]), entrypoint_num_cpus=1)
    while api.job(name)["status"] in ("PENDING", "RUNNING"):
        time.sleep(0.05)


LAUNCHERS = {"ours": ours, "ray job submit": ray_job_submit, "bare request": request}


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--only", default="", help="names of launchers, comma-separated")
    chosen = options.parse_args()
    from ray_cluster import RayCluster

    wanted = [name for name in chosen.only.split(",") if name] or list(LAUNCHERS)
    with tempfile.TemporaryDirectory() as name, RayCluster(workers=1) as cluster:
        folder = Path(name) / "project"
        folder.mkdir()
        for words in (("init", "-q"), ("config", "user.email", "bench@example.org"), ("config", "user.name", "bench")):
            subprocess.run(["git", *words], cwd=folder, check=True)
        (folder / ".gitignore").write_text("stamp\n.fsdl\n")
        (folder / "trivial.py").write_text(TRIVIAL)
        (folder / "pyproject.toml").write_text(f'[tool.fsdl_dev.targets.lab]\nkind = "ray"\naddress = "{cluster.address}"\n')
        os.environ.update(FSDL_STATE=f"{name}/state", FSDL_STORE=f"{name}/store")
        os.environ.pop("RAY_ADDRESS", None)
        times: dict[str, list[float]] = {launcher: [] for launcher in wanted}
        stamp = folder / "stamp"
        for number in range(chosen.rounds + 1):
            for launcher in wanted:
                stamp.unlink(missing_ok=True)
                began = time.time()
                LAUNCHERS[launcher](folder, cluster.address, [str(stamp)])
                if number:  # the first round warms files, workers and the snapshot
                    times[launcher].append(float(stamp.read_text()) - began)
        print(f"\none process on Ray, launch to first line of output ({chosen.rounds} rounds, medians)")
        base = statistics.median(times["ray job submit"]) if "ray job submit" in times else None
        for launcher, all_times in times.items():
            median = statistics.median(all_times)
            ratio = f"{median / base:6.2f} of ray job submit" if base else ""
            print(f"  {launcher:<16} {median:6.3f} s   {min(all_times):6.3f} to {max(all_times):6.3f}   {ratio}")


if __name__ == "__main__":
    main()
