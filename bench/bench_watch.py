"""What 200 live runs cost the kernel that watches them, and how soon a card shows what happened.

python bench/bench_watch.py [--runs 200] [--seconds 20] [--only
local-poll,ssh-poll,local-table,local-cards,ssh-table]

A real kernel polls the runs and shows nothing (poll), or shows them as a table, as a sweep does, or as a card
each, and one card besides. Another process writes what trainings write: progress four times a second and a
metric every second (busy), or the use of the machine every two seconds alone (quiet). Measured is the processor
time of the kernel's own process, beside that of the same kernel before it shows anything. In the ssh case the
runs lie behind a real sshd on loopback, and the processor time of the ssh programs that the kernel starts is
told apart.
"""

import argparse
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from side_by_side import use_test_helpers

from fsdl_dev.core.event_kinds import State
from fsdl_dev.core.rundir import RunDir, create_run_dir, write_json
from fsdl_dev.worker.processes import identity


def feed(folders: list[Path], busy: bool) -> None:
    """Write events into runs until killed, or until the parent has gone; each run's are spread over the second."""
    parent = os.getppid()
    files = [
        {name: open(folder / "events" / f"{name}.jsonl", "a", buffering=1) for name in ("rank0", "resource")}
        for folder in folders
    ]
    step = 0
    while os.getppid() == parent:
        step += 1
        began = time.monotonic()
        for number, both in enumerate(files):
            if busy:
                both["rank0"].write(
                    json.dumps(
                        {
                            "t": time.time(),
                            "kind": "progress",
                            "rank": 0,
                            "step": step,
                            "total": 100_000,
                            "epoch": 0,
                            "epochs": 1,
                            "stage": "train",
                            "rate": 4.0,
                        }
                    )
                    + "\n"
                )
                if step % 4 == number % 4:
                    both["rank0"].write(
                        json.dumps(
                            {
                                "t": time.time(),
                                "kind": "metric",
                                "rank": 0,
                                "step": step,
                                "epoch": 0,
                                "values": {"train_loss": 1 / step},
                            }
                        )
                        + "\n"
                    )
            if step % 8 == number % 8:
                both["resource"].write(
                    json.dumps(
                        {
                            "t": time.time(),
                            "kind": "resource",
                            "rank": None,
                            "cpu": 100.0 + step % 7,
                            "rss": 1e9,
                            "gpu": [],
                        }
                    )
                    + "\n"
                )
        time.sleep(max(0.0, 0.25 - (time.monotonic() - began)))


def start_time(pid: int) -> str:
    """The start of a process as /proc has it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def lay_out(folder: Path, count: int, ssh: bool, feeder: int) -> tuple[list[Path], list[Path]]:
    """Live runs whose worker is the feeder: the directories that the kernel reads, and those that the feeder writes."""
    here, there = [], []
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for number in range(count):
        run = create_run_dir(
            folder / "project" / ".fsdl",
            {
                "kind": "script",
                "name": "train.py",
                "script": "train.py",
                "target": "lab" if ssh else "local",
                "params": {"seed": number},
                "tags": {"sweep": "seed-1"},
                "resources": {"procs": 1},
            },
        )
        here.append(run.path)
        far = RunDir(folder / "storage" / "runs" / run.id) if ssh else run
        if ssh:
            for part in (far.events, far.logs, far.path / ".started"):
                part.mkdir(parents=True)
            write_json(far.job_file, run.job())
            run.set_state(run.writer("launcher"), "queued", "example")
            (far.path / ".started" / "who").write_text(f"{feeder} {boot} {start_time(feeder)}\n")
            write_json(
                run.path / "placement.json",
                {"kind": "ssh", "store": str(folder / "storage"), "target": "lab"},
            )
            write_json(run.path / "engine.json", {"kind": "ssh", "name": "lab", "id": run.id, "host": "lab"})
        who = {**identity(feeder)}
        for state in ("starting", "running") if ssh else ("queued", "starting", "running"):
            far.writer("worker").write(State(state=state, reason="example", **who))
        there.append(far.path)
    return here, there


class Kernel:
    """A real IPython kernel in the project's folder, and what it shows."""

    def __init__(self, folder: Path):
        from jupyter_client.manager import start_new_kernel

        self.manager, self.client = start_new_kernel(cwd=str(folder))
        self.process = psutil.Process(self.manager.provisioner.process.pid)

    def run(self, code: str) -> None:
        """Run code and wait for it."""
        answer = self.client.execute_interactive(code, timeout=120, output_hook=lambda message: None)
        if answer["content"]["status"] != "ok":
            raise SystemExit("\n".join(answer["content"]["traceback"]))

    def drain(self) -> None:
        """Forget what was shown."""
        while True:
            try:
                self.client.get_iopub_msg(timeout=0.01)
            except queue.Empty:
                return

    def share(self, seconds: float) -> tuple[float, float]:
        """Processor time of the kernel, and of the programs it has started and that have ended, by the second."""
        before, began = self.process.cpu_times(), time.monotonic()
        end = began + seconds
        while time.monotonic() < end:  # a page takes the messages, or they pile up
            try:
                self.client.get_iopub_msg(timeout=max(0.01, end - time.monotonic()))
            except queue.Empty:
                pass
        after, spent = self.process.cpu_times(), time.monotonic() - began
        return (after.user + after.system - before.user - before.system) / spent, (
            after.children_user + after.children_system - before.children_user - before.children_system
        ) / spent

    def latency(self, run: Path, rounds: int = 9) -> list[float]:
        """Seconds from an event's line to the card that shows it."""
        found = []
        for number in range(rounds):
            self.drain()
            stamp = f"stamp-{number}-{time.time_ns()}"
            began = time.monotonic()
            with open(run / "events" / "agent.jsonl", "a") as file:
                file.write(
                    json.dumps(
                        {"t": time.time(), "kind": "note", "rank": None, "text": stamp, "level": "info"}
                    )
                    + "\n"
                )
            while time.monotonic() - began < 30:
                try:
                    message = self.client.get_iopub_msg(timeout=1)
                except queue.Empty:
                    continue
                if stamp in str(message["content"].get("data", {}).get("text/html", "")):
                    found.append(time.monotonic() - began)
                    break
            else:
                found.append(30.0)
            time.sleep(0.37)
        return found

    def stop(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


SHOW = """
from pathlib import Path
from fsdl_dev.core.rundir import RunDir
from fsdl_dev.cards.live import show, show_group
from fsdl_dev.records.group import RunGroup
from fsdl_dev.records.run import Run
from fsdl_dev.records.watch import watch
group = RunGroup(Run(RunDir(path)) for path in sorted(Path(".fsdl/runs").absolute().iterdir()))
"""


SHOWN = {"poll": ("for run in group: watch.add(run)", "polled, nothing shown"),
    "cards": ("for run in group: show(run)", "shown as a card each"),
         "table": ("show_group(group)\nshow(group[0])", "shown as a table, and one card")}  # fmt: skip


def measure(count: int, seconds: float, ssh: bool, shown: str) -> None:
    """One case: idle, quiet, busy, and how soon an event is shown."""
    with tempfile.TemporaryDirectory() as name:
        folder, sshd, feeder, kernel = Path(name), None, None, None
        (folder / "project").mkdir()
        environment = {"FSDL_STATE": f"{name}/state"}
        try:
            if ssh:
                use_test_helpers()
                from sshd import start_sshd

                sshd = start_sshd(folder / "sshd")
                environment["FSDL_SSH_CONFIG"] = str(sshd.config)
            table = sshd.target(folder / "storage") if ssh else ""
            (folder / "project" / "pyproject.toml").write_text(f"[tool.fsdl_dev]\n{table}")
            os.environ.update(environment)
            os.environ.pop("FSDL_STORE", None)
            feeder = subprocess.Popen(
                [sys.executable, "-c", "import time; time.sleep(3600)"]
            )  # the workers' process
            here, there = lay_out(folder, count, ssh, feeder.pid)
            kernel = Kernel(folder / "project")
            kernel.run("import fsdl_dev\n%load_ext fsdl_dev")
            idle, _ = kernel.share(5.0)
            kernel.run(SHOW + SHOWN[shown][0])
            time.sleep(8 if ssh else 4)
            print(f"\n{count} live runs {'behind sshd' if ssh else 'on this machine'}, {SHOWN[shown][1]}")
            print(f"  {'idle kernel':<24} {100 * idle:6.2f} % of a core")
            for word in ("quiet", "busy"):
                writer = subprocess.Popen([sys.executable, __file__, "--feed", word, *map(str, there)])
                time.sleep(6)
                own, children = kernel.share(seconds)
                print(
                    f"  {f'{word} runs':<24} {100 * own:6.2f} % of a core"
                    + (f", and {100 * children:.2f} % in programs it starts" if children > 0.0005 else "")
                )
                took = kernel.latency(there[0]) if shown != "poll" else []
                if took:
                    print(
                        f"  {f'{word}: event to card':<24} {statistics.median(took):6.2f} s median,"
                        f" {max(took):.2f} s at most, of {len(took)}"
                    )
                writer.kill()
                writer.wait()
        finally:
            if kernel:
                kernel.stop()
            if feeder:
                feeder.kill()
                feeder.wait()
            if sshd:
                sshd.stop()


def main() -> None:
    """Measure and print."""
    if sys.argv[1:2] == ["--feed"]:
        return feed([Path(text) for text in sys.argv[3:]], sys.argv[2] == "busy")
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--runs", type=int, default=200)
    options.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    options.add_argument(
        "--only",
        default="local-poll,ssh-poll,local-table,local-cards,ssh-table",
        help="cases, comma-separated; there is ssh-cards too",
    )
    chosen = options.parse_args()
    for case in chosen.only.split(","):
        place, _, shown = case.partition("-")
        measure(chosen.runs, chosen.seconds, place == "ssh", shown)


if __name__ == "__main__":
    main()
