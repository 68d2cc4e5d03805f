"""Launch to the first line of output, and two and eight gloo processes to the end: this project beside the launchers
people use.

python bench/bench_launch.py [--rounds 7] [--pair-rounds 5] [--eight-rounds 3] [--only ours,torchrun]
python bench/bench_launch.py --many 300

Each round runs every launcher once, in turn, so that a busy machine is equally unkind to all. Medians are
printed, and ratios to bare torchrun. Launchers that are not installed (submitit, accelerate) are left out with
a message.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from side_by_side import chosen_names, make_project, measure, print_times

PAIR = """\
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(1000)
dist.all_reduce(x)
assert x[0] == dist.get_world_size() == int(os.environ["WORLD_SIZE"])
dist.barrier()
dist.destroy_process_group()
"""
BIN = Path(sys.executable).parent


def ours(folder: Path, script: str, procs: int, args: list[str]) -> None:
    """`fsdl_dev.launch` to the test target, snapshot unchanged since the warming round, and wait for the end by
    polling, as a card does.
    """
    import fsdl_dev
    from fsdl_dev.core.states import FINAL

    run = fsdl_dev.launch(script, args=args, folder=folder, on="test", procs=procs, gpus=0, say=None)
    while run.target.poll(run.dir) not in FINAL:
        time.sleep(0.01)
    if run.state != "succeeded":
        raise SystemExit(f"our run failed: {run.failure}\n{run.dir.worker_log.read_text()}")


def command(*words: str):
    """A launcher that is a command line."""

    def start(folder: Path, script: str, procs: int, args: list[str]) -> None:
        filled = [str(folder / script) if w == "SCRIPT" else str(procs) if w == "PROCS" else w for w in words]
        subprocess.run(
            [*filled, *args], cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    return start


def submitit(folder: Path, script: str, procs: int, args: list[str]) -> None:
    """submitit's local executor."""
    import submitit as library

    executor = library.LocalExecutor(folder=folder / "submitit")
    job = executor.submit(library.helpers.CommandFunction([sys.executable, str(folder / script), *args]))
    job.result()


def launchers() -> dict:
    """Name -> (start, how many processes it is measured with)."""
    found = {
        "ours": (ours, (1, 2, 8)),
        "torchrun": (
            command(str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "PROCS", "SCRIPT"),
            (1, 2, 8),
        ),
        "subprocess": (command(sys.executable, "SCRIPT"), (1,)),
    }
    accelerate = [
        str(BIN / "accelerate"),
        "launch",
        "--cpu",
        "--num_machines",
        "1",
        "--mixed_precision",
        "no",
        "--dynamo_backend",
        "no",
    ]
    if importlib.util.find_spec("accelerate") and (BIN / "accelerate").exists():
        found["accelerate"] = (command(*accelerate, "--num_processes", "PROCS", "SCRIPT"), (1,))
    else:
        print("accelerate is not installed: left out (pip install accelerate)")
    if importlib.util.find_spec("submitit"):
        found["submitit"] = (submitit, (1,))
    else:
        print("submitit is not installed: left out (pip install submitit)")
    return found


def seconds(start, folder: Path, script: str, procs: int, first_line: bool) -> float:
    """Seconds from the call to the script's first line, or to the end."""
    stamp = folder / "stamp"
    stamp.unlink(missing_ok=True)
    began = time.time()
    start(folder, script, procs, [str(stamp)] if first_line else [])
    return (float(stamp.read_text()) if first_line else time.time()) - began


def submit_many(folder: Path, count: int) -> None:
    """Submit runs of the trivial job one after the other, as a script does, and say how long that took.

    The jobs wait for two slots and run meanwhile, so the machine is busy with them and with whatever else it does.
    """
    import fsdl_dev

    before, began, runs = os.times(), time.perf_counter(), []
    for number in range(count):
        args = [str(folder / f"stamp{number}")]
        runs.append(fsdl_dev.launch("trivial.py", args=args, folder=folder, on="test", gpus=0, say=None))
    seconds, after = time.perf_counter() - began, os.times()
    own = after.user + after.system - before.user - before.system
    print(f"\n{count} launches submitted in {seconds:.1f} s ({own:.1f} s of CPU in the launching process)")
    print(
        f"load average then: {', '.join(f'{load:.1f}' for load in os.getloadavg())} on {os.cpu_count()} cores"
    )
    for run in runs:
        if run.wait(progress=False).state != "succeeded":
            raise SystemExit(f"{run.words} failed: {run.failure}")
    print(f"all ended after {time.perf_counter() - began:.1f} s, load {os.getloadavg()[0]:.1f}")


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--rounds", type=int, default=7, help="of the trivial job")
    options.add_argument("--pair-rounds", type=int, default=5, help="of the two gloo processes")
    options.add_argument("--eight-rounds", type=int, default=3, help="of the eight")
    options.add_argument("--many", type=int, default=0, help="instead: submit so many runs, such as 300")
    options.add_argument("--only", default="", help="names of launchers, comma-separated")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "project"
        make_project(folder, ignore="stamp*\nsubmitit\n", pair=PAIR)
        os.environ.update(
            FSDL_STATE=f"{name}/state", FSDL_STORE=f"{name}/store", FSDL_SLOTS="2" if chosen.many else "8"
        )
        # the processes of a user find compiled modules; the first round, which does not count, makes them
        os.environ.update(PYTHONPYCACHEPREFIX=f"{name}/pycache")
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        if chosen.many:
            return submit_many(folder, chosen.many)
        known = launchers()
        found = {n: known[n] for n in chosen_names(chosen.only, known)}
        for title, script, procs, rounds in (
            ("one process, launch to first line of output", "trivial.py", 1, chosen.rounds),
            ("two gloo processes, launch to the end", "pair.py", 2, chosen.pair_rounds),
            ("eight gloo processes, launch to the end", "pair.py", 8, chosen.eight_rounds),
        ):
            if rounds:
                measures = {
                    n: partial(seconds, start, folder, script, procs, procs == 1)
                    for n, (start, counts) in found.items()
                    if procs in counts
                }
                print_times(f"{title} ({rounds} rounds, medians)", measure(measures, rounds), "torchrun")


if __name__ == "__main__":
    main()
