"""A snapshot of 5,000 files over SSH loopback, first, unchanged and with one changed line: this project beside
rsync over the same ssh.

python bench/bench_shipping.py [--files 5000] [--rounds 3]

Both use the same shared connection, warm. Bytes are what is handed to ssh: for us every command and its input,
for rsync what `--stats` calls sent. Each round starts from an empty far folder; each step is done by ours and
by rsync in turn. Medians are printed, and ratios to rsync. A second table has the cost of watching 200 live
runs: processor seconds of this process and of its children for each second of watching.
"""

import argparse
import json
import os
import random
import shlex
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from side_by_side import use_test_helpers

use_test_helpers()

from sshd import start_sshd  # noqa: E402

from fsdl_dev.core.event_kinds import Progress, State  # noqa: E402


def make_project(folder: Path, count: int) -> None:
    """Files that look like code."""
    words, dice = Path(json.__file__).read_text().split(), random.Random(0)
    for number in range(count):
        path = folder / f"module_{number // 50}" / f"file_{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {number}\n" + " ".join(dice.choices(words, k=dice.randint(50, 400))))


def take(store: Path, folder: Path):
    """A snapshot of a folder, as launching takes it, without the parts that are not files."""
    from fsdl_dev.snapshot.blobs import BlobKeeper, put_blob
    from fsdl_dev.snapshot.snapshot import save_snapshot

    keeper, entries = BlobKeeper(store), {}
    for path in sorted(folder.rglob("*.py")):
        data = path.read_bytes()
        entries[path.relative_to(folder).as_posix()] = {
            "sha256": keeper.put(data)[0],
            "mode": "100644",
            "size": len(data),
        }
    keeper.flush()
    lock = put_blob(store, b'{"python": "3.11"}')[0]
    return save_snapshot(
        store,
        {
            "files": entries,
            "git": None,
            "environment": {"lock": lock, "digest": lock},
            "data": [],
            "project": {"import_root": ".", "package": None},
        },
    )


def count_traffic(shell) -> list[int]:
    """Every byte that is handed to ssh, and every command."""
    sent, once = [], shell._once

    def counted(line, data, *more, **options):
        sent.append(len(line) + len(data))
        return once(line, data, *more, **options)

    shell._once = counted
    return sent


def rsync(shell, source: Path, target: str) -> tuple[float, int]:
    """Seconds and bytes."""
    start = time.perf_counter()
    done = subprocess.run(
        [
            "rsync",
            "-az",
            "--delete",
            "--stats",
            "-e",
            shlex.join(shell.command),
            f"{source}/",
            f"lab:{target}/",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    seconds = time.perf_counter() - start
    return seconds, int(
        next(line for line in done.stdout.splitlines() if line.startswith("Total bytes sent"))
        .split(":")[1]
        .replace(",", "")
    )


def shipping(folder: Path, shell, files: int, rounds: int) -> None:
    """The first table."""
    from fsdl_dev.engines.remote.ship import ship_snapshot
    from fsdl_dev.engines.transport.storage import open_storage

    source, sent = folder / "project", count_traffic(shell)
    make_project(source, files)
    figures: dict[tuple[str, str], list[tuple[float, int]]] = {}
    for number in range(rounds):
        far = folder / f"far{number}"
        far.mkdir()
        for step in ("first", "unchanged", "one changed line"):
            if step == "one changed line":
                with open(source / "module_3" / "file_150.py", "a") as file:
                    file.write(f"\nlearning_rate = {number}\n")
            snapshot = take(folder / "store", source)
            sent.clear()
            start = time.perf_counter()
            ship_snapshot(snapshot, open_storage(str(far / "ours"), shell))
            figures.setdefault((step, "ours"), []).append((time.perf_counter() - start, sum(sent)))
            figures.setdefault((step, "rsync"), []).append(rsync(shell, source, str(far / "rsync")))
        shutil.rmtree(far)
        shutil.rmtree(folder / "store" / "cache", ignore_errors=True)
    print(
        f"{files} files, {rounds} rounds,"
        f" medians\n{'step':20}{'ours s':>10}{'rsync s':>10}{'ratio':>8}"
        f"{'ours bytes':>14}{'rsync bytes':>14}{'ratio':>8}"
    )
    for step in ("first", "unchanged", "one changed line"):
        (ours, our_bytes), (theirs, their_bytes) = (
            [statistics.median(column) for column in zip(*figures[step, who])] for who in ("ours", "rsync")
        )
        print(
            f"{step:20}{ours:10.3f}{theirs:10.3f}{ours / theirs:8.2f}"
            f"{our_bytes:14,.0f}{their_bytes:14,.0f}{our_bytes / their_bytes:8.2f}"
        )


def watching(folder: Path, shell, runs: int, seconds: float) -> None:
    """The second table: as many live runs as there are, an event in each tenth of them every second."""
    from fsdl_dev.core.rundir import RunDir, create_run_dir
    from fsdl_dev.engines.remote.mirror import Mirror, pull_all
    from fsdl_dev.engines.transport.storage import open_storage

    storage = open_storage(str(folder / "watched"), shell)
    pairs = [
        (run, RunDir(Path(storage.join("runs", run.id))))
        for run in (create_run_dir(folder / "here", {}) for _ in range(runs))
    ]
    writers = [far.writer("worker") for _, far in pairs]
    for writer in writers:
        writer.write(State(state="running"))
    pull_all([Mirror(run, storage) for run, _ in pairs])
    before, start, rounds = os.times(), time.perf_counter(), 0
    own = 0.0
    while time.perf_counter() - start < seconds:
        for writer in writers[rounds % 10 :: 10]:
            writer.write(Progress(step=rounds))
        begin = time.process_time()
        got = pull_all([Mirror(run, storage) for run, _ in pairs])
        own += time.process_time() - begin
        assert sum(1 for count in got.values() if count) == len(writers[rounds % 10 :: 10])
        rounds += 1
        time.sleep(max(0.0, start + rounds - time.perf_counter()))
    after = os.times()
    ended = after.children_user + after.children_system - before.children_user - before.children_system
    print(
        f"watching {runs} runs, one look a second for {rounds} s: {100 * own / rounds:.2f}% of a core in this"
        " process,"
        f" {100 * ended / rounds:.2f}%"
        " in processes that ended"
    )


def main() -> None:
    """Run both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10)
    chosen = parser.parse_args()
    from fsdl_dev.engines.transport.ssh import SshShell

    with tempfile.TemporaryDirectory() as place:
        server = start_sshd(Path(place) / "sshd")
        os.environ["FSDL_SSH_CONFIG"] = str(server.config)
        shell = SshShell("lab")
        try:
            shell.run("true")
            if shutil.which("rsync"):
                shipping(Path(place), shell, chosen.files, chosen.rounds)
            else:
                print("no rsync here: nothing to compare with")
            watching(Path(place), shell, chosen.runs, chosen.seconds)
        finally:
            shell.disconnect()
            server.stop()


if __name__ == "__main__":
    main()
