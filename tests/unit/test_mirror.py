"""A far run directory mirrored over a real sshd: growing, torn, replaced and cut logs, a
lost connection.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fsdl_dev.core.errors import FsdlError
from fsdl_dev.core.event_kinds import Checkpoint, Metric, Progress, State
from fsdl_dev.core.events import EventTail, EventWriter, read_events
from fsdl_dev.core.job import Job, LaunchRecord
from fsdl_dev.core.rundir import RunDir, create_run_dir
from fsdl_dev.engines import target as registry
from fsdl_dev.engines.local import LocalTarget
from fsdl_dev.engines.remote.mirror import Mirror, pull_all
from fsdl_dev.engines.transport.shell import Unreachable, with_patience
from fsdl_dev.engines.transport.ssh import SshShell
from fsdl_dev.engines.transport.storage import open_storage
from fsdl_dev.records.place import RunPlace
from fsdl_dev.records.run import Run
from fsdl_dev.share.mirror import mirror as mirror_run


def new_run(storage, tmp_path, name: str = "läuft") -> tuple[RunDir, RunDir]:
    """A run here and its directory there."""
    run = create_run_dir(tmp_path / "here", Job("script", name))
    far = RunDir(Path(storage.join("runs", run.id)))
    for folder in (far.events, far.logs, far.checkpoints):
        folder.mkdir(parents=True)
    return run, far


def test_events_appear_and_a_new_process_goes_on(storage, tmp_path):
    run, far = new_run(storage, tmp_path)
    tail = EventTail(run.events)
    writers = {
        name: far.writer(name)
        for name in ("worker", "rank0", "rank1", "resource", "harvest", "agent", "node1")
    }
    far.writer("launcher").write(State(state="queued"))  # ours, if it was pushed: never pulled
    for step in range(3):
        for writer in writers.values():
            writer.write(Metric(step=step, values={"größe": 1.0}))
        Mirror(run, storage).pull()
        assert len(tail.poll()) == 7
    program = (
        "import sys; from pathlib import Path; from fsdl_dev.core.rundir import RunDir; from"
        " fsdl_dev.engines.remote.mirror import Mirror\nfrom fsdl_dev.engines.transport.ssh import SshShell;"
        " from fsdl_dev.engines.transport.storage import"
        " open_storage\nprint(Mirror(RunDir(Path(sys.argv[1])), open_storage(sys.argv[2],"
        " SshShell('lab'))).pull())"
    )
    line = writers["worker"].write(Metric(step=3, values={}))
    other = subprocess.run(
        [sys.executable, "-c", program, str(run.path), storage.root],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert int(other.stdout) == len(json.dumps(line)) + 1, other.stderr
    assert Mirror(run, storage).pull() == 0 and len(tail.poll()) == 1
    assert sorted(path.name for path in run.events.iterdir()) == sorted(f"{name}.jsonl" for name in writers)


def test_a_torn_line_waits(storage, tmp_path):
    run, far = new_run(storage, tmp_path)
    with open(far.events / "worker.jsonl", "ab", buffering=0) as file:
        file.write(b'{"t": 1764000000.5, "kind": "a"}\n{"t": 1764000001.5, "ki')
        Mirror(run, storage).pull()
        assert [event["kind"] for event in read_events(run.events)] == ["a"]
        file.write(b'nd": "b"}\n')
        Mirror(run, storage).pull()
    assert [event["kind"] for event in read_events(run.events)] == ["a", "b"]


def test_two_processes_mirror_the_same_run(storage, tmp_path):
    """A kernel and a terminal: every event once, whoever is first."""
    run, far = new_run(storage, tmp_path)
    writer, stop = far.writer("rank0"), threading.Event()

    def follow():
        mine = open_storage(storage.root, SshShell("lab"))
        while not stop.is_set():
            Mirror(run, mine).pull()

    threads = [threading.Thread(target=follow) for _ in range(3)]
    for thread in threads:
        thread.start()
    for step in range(300):
        writer.write(Metric(step=step, values={}))
        time.sleep(0.01)
    stop.set()
    for thread in threads:
        thread.join(240)
    Mirror(run, storage).pull()
    assert [event["step"] for event in read_events(run.events)] == list(range(300))


def test_a_far_file_that_is_replaced_or_cut(storage, tmp_path):
    run, far = new_run(storage, tmp_path)
    tail, path = EventTail(run.events), far.events / "worker.jsonl"

    def write(*steps):
        writer = EventWriter(path)
        for step in steps:
            writer.write(Metric(step=step, values={}))
        writer.close()
        for _ in range(2):
            Mirror(run, storage).pull()
        return [event["step"] for event in tail.poll()]

    assert write(*range(5)) == list(range(5))
    path.unlink()
    assert write(10) == [10], "a shorter file in its place"
    path.unlink()
    assert write(*range(20, 30)) == list(range(20, 30)), "a longer one"
    lines = path.read_bytes().splitlines(keepends=True)
    os.truncate(path, sum(map(len, lines[:5])))
    assert write(40, 41) == [40, 41], "lines that a crashed disk lost"
    os.truncate(path, path.stat().st_size - 3)
    assert write(50) == [50], "and one that it tore"


def test_200_runs_are_two_commands(storage, tmp_path, monkeypatch):
    pairs = [new_run(storage, tmp_path, f"{n}") for n in range(200)]
    calls, run = [], storage.shell.run
    for _, far in pairs:
        far.writer("worker").write(State(state="starting"))
        far.writer("rank0").write(Progress(step=1))
    mirrors = [Mirror(here, storage) for here, _ in pairs]
    monkeypatch.setattr(
        storage.shell, "run", lambda command, **more: calls.append(command) or run(command, **more)
    )
    assert all(pull_all(mirrors).values()) and len(calls) == 2
    calls.clear()
    assert not any(pull_all(mirrors).values()) and len(calls) == 1
    pairs[7][1].writer("rank0").write(Progress(step=2))
    calls.clear()
    got = pull_all([Mirror(here, storage) for here, _ in pairs])
    assert [name for name, count in got.items() if count] == [pairs[7][0].id] and len(calls) == 2


def test_logs_are_followed(own_sshd, storage, tmp_path):
    run, far = new_run(storage, tmp_path)
    run.writer("launcher").write(State(state="queued"))
    mirror, text, end = Mirror(run, storage), "", 0
    assert mirror.read_log(0) == ("", 0)
    with open(far.log(0), "wb", buffering=0) as log:
        for number in range(3):
            log.write(f"größe {number}\nhal".encode())
            new, end = mirror.read_log(0, end)
            text += new
            log.write(b"f\n")
    new, end = mirror.read_log(0, end)
    assert (
        text + new == "".join(f"größe {n}\nhalf\n" for n in range(3))
        and run.log(0).read_bytes() == far.log(0).read_bytes()
    )
    own_sshd.stop()
    assert mirror.read_log(0)[0].startswith("größe 0\n"), (
        "what has been read once can be read with no connection"
    )
    with pytest.raises(Unreachable), with_patience(0):
        mirror.read_log(0, end)


def test_a_checkpoint_is_fetched_with_progress_resumed_and_checked(own_sshd, storage, tmp_path):
    run, far = new_run(storage, tmp_path)
    weights = os.urandom(50_000_000)
    (far.checkpoints / "größe.ckpt").write_bytes(weights)
    far.writer("rank0").write(
        Checkpoint(path="checkpoints/größe.ckpt", step=7, sha256=hashlib.sha256(weights).hexdigest())
    )
    mirror, heard = Mirror(run, storage), []
    mirror.pull()

    def cut(text: str) -> None:
        heard.append(text)
        own_sshd.cut()

    mirror.fetch(["checkpoints/größe.ckpt"], cut)
    assert (
        (run.checkpoints / "größe.ckpt").read_bytes() == weights
        and heard[-1] == "größe.ckpt: 50.0 MB of 50.0 MB"
        and len(heard) >= 3
    )
    heard.clear()
    mirror.fetch(["checkpoints"], heard.append)
    assert not heard, "it is here already"
    (far.checkpoints / "größe.ckpt").write_bytes(bytes(50_000_000))
    (run.checkpoints / "größe.ckpt").unlink()
    with pytest.raises(FsdlError) as caught:
        mirror.fetch(["checkpoints/größe.ckpt"])
    assert "its digest differs" in caught.value.what and not (run.checkpoints / "größe.ckpt").exists()
    with pytest.raises(FsdlError):
        mirror.fetch(["../../../etc/passwd"])


def test_what_a_run_leaves_comes_at_its_end(storage, tmp_path):
    run, far = new_run(storage, tmp_path)
    (run.path / "placement.json").write_text("{}")
    for name in ("result.json", "executed.ipynb", "curves.png", "placement.json", "worker.json", "start.sh"):
        (far.path / name).write_text(f"far {name}")
    (far.log(0)).write_text("the end\n")
    (far.path / "work").mkdir()
    (far.path / "work" / "large").write_text("not this")
    for _ in range(2):
        Mirror(run, storage).pull_end()
    assert (run.path / "executed.ipynb").read_text() == "far executed.ipynb" and run.log(
        0
    ).read_text() == "the end\n"
    assert (
        (run.path / "placement.json").read_text() == "{}"
        and not (run.path / "work").exists()
        and not (run.path / "worker.json").exists()
    )


def test_the_host_is_away_for_some_seconds(own_sshd, storage, tmp_path):
    run, far = new_run(storage, tmp_path)
    writer = far.writer("worker")
    writer.write(Metric(step=0, values={}))
    Mirror(run, storage).pull()
    writer.write(Metric(step=1, values={}))
    own_sshd.stop()
    timer = threading.Timer(4, own_sshd.start)
    timer.start()
    Mirror(run, storage).pull()
    timer.join()
    assert [event["step"] for event in read_events(run.events)] == [0, 1]


def test_a_wiped_run_directory_loses_nothing_here(storage, tmp_path):
    run, far = new_run(storage, tmp_path)
    far.writer("worker").write(Metric(step=0, values={}))
    Mirror(run, storage).pull()
    shutil.rmtree(far.path)
    assert Mirror(run, storage).pull() == 0 and len(read_events(run.events)) == 1
    Mirror(run, storage).pull_end()


def test_a_run_lost_before_it_had_a_trackers_files_is_sent_from_its_events(storage, tmp_path, monkeypatch):
    """Its directory is gone from where it ran, and `fsdl mirror` sends what came here."""
    pytest.importorskip("tensorboard")

    class Far(LocalTarget):
        kind = "far"

        def fetch(self, run, paths, say=None):
            Mirror(run, storage).fetch(paths, say)

    monkeypatch.setitem(registry._KINDS, "far", Far)
    monkeypatch.setattr(RunPlace, "elsewhere", True)
    run = create_run_dir(
        tmp_path / "here", Job("script", "lost", loggers=("tensorboard",)), LaunchRecord(target="far")
    )
    run.writer("rank0", rank=0).write(Metric(step=1, values={"loss": 0.5}))
    for state in ("queued", "starting", "lost"):
        run.set_state(run.writer("worker"), state, "by hand")
    assert mirror_run(Run(run), say=None)["tensorboard"]["rows"] == 1
    with pytest.raises(FsdlError, match="has no file 'checkpoints/x'"):
        Run(run).place.bring([run.path / "checkpoints" / "x"])
