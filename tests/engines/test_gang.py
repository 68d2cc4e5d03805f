"""Runs on several machines that no scheduler starts: here two folders of one machine, each with its own slots
and its own copy of the run directory.
"""

import hashlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import textwrap
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
from following import events, until
from ports import free_port

from fsdl_dev.core.event_kinds import Checkpoint
from fsdl_dev.core.job import Job, Resources
from fsdl_dev.core.protocol import Module
from fsdl_dev.core.rundir import RunDir, create_run_dir, write_json
from fsdl_dev.core.states import FINAL
from fsdl_dev.worker.failures import explain_failure
from fsdl_dev.worker.processes import Identity, is_alive, run_processes
from fsdl_dev.worker.slots import slots_table

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]
PATIENCE = 300  # seconds; a test that needs more has failed
ALL_REDUCE = """
import os, time, torch

torch.distributed.init_process_group("gloo")
x = torch.tensor([float(os.environ["RANK"])])
torch.distributed.all_reduce(x)
print(
    int(x.item()),
    *(os.environ[name] for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "FSDL_NODE")),
    flush=True,
)
time.sleep(1)
"""
WAITS = "import os, time\nprint('up', flush=True)\ntime.sleep(600)\n"


class Machines:
    """Folders that stand for machines."""

    def __init__(self, folder: Path, count: int = 2):
        self.folder, self.processes, self.runs = folder, [], []
        self.stores = [folder / f"machine {number}" / "store" for number in range(count)]

    def launch(
        self,
        text: str,
        procs: int = 1,
        slots: int = 4,
        first: int = 0,
        gang: str = "hosts",
        shared: bool = False,
        resume: str | None = None,
        **placement,
    ) -> RunDir:
        """A run on two machines; the worker of `first` leads.

        The followers come first, as the SSH target starts them.
        """
        order = [first, 1 - first]
        job = Job(
            kind="script",
            name="a gang",
            script="job.py",
            resume=resume,
            resources=Resources(procs=procs, nodes=2, gpus=0),
        )
        run = create_run_dir(self.stores[first], job)
        code = self.folder / f"code-{run.id}"
        code.mkdir()
        (code / "job.py").write_text(textwrap.dedent(text))
        write_json(run.snapshot_file, {"digest": "none", "code": str(code)})
        run.set_state(run.writer("launcher"), "queued", "submitted")
        place = {
            "target": "box",
            "kind": "ssh",
            "grace_seconds": 10.0,
            "allocation": "lease",
            "pool": "local/",
            "gang": gang,
            "port": free_port(),
            "master": "127.0.0.1",
            **(
                {"hosts": [f"host{number}" for number in order], "token": secrets.token_hex(8)}
                if gang == "hosts"
                else {"nodes": 2}
            ),
        } | placement
        for rank, number in reversed(list(enumerate(order))):
            own = run.path if shared or rank == 0 else self.stores[number] / "runs" / run.id
            if own != run.path:
                shutil.copytree(run.path, own)
            write_json(
                own / "placement.json",
                place
                | {"store": str(own.parent.parent), "project": str(own / "work")}
                | ({"node": rank} if gang == "hosts" else {}),
            )
            self.start(own, number, slots, gang, rank)
        self.runs.append(run)
        return run

    def start(self, own: Path, number: int, slots: int, gang: str, rank: int) -> None:
        "What the target starts on one machine."
        environment = {
            **os.environ,
            "FSDL_STATE": str(self.folder / f"machine {number}" / "state"),
            "FSDL_SLOTS": str(slots),
            "PYTHONPATH": str(ROOT),
            **(
                {"JOB_COMPLETION_INDEX": str(rank), "NODE_NAME": f"pod{rank}", "MASTER_ADDR": "127.0.0.1"}
                if gang == "env"
                else {}
            ),
        }
        if gang == "hosts" and rank:
            environment["FSDL_NODE_RANK"] = str(rank)
        program = Module.NODE if rank and gang == "hosts" else Module.WORKER
        with open(own / "logs" / f"worker{rank or ''}.log", "ab") as log:
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, "-P", "-m", program, str(own)],
                    env=environment,
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )

    def until(self, true, run: RunDir | None = None) -> None:
        until(
            true,
            lambda: "\n".join(
                [
                    f"{run and run.last_state()}",
                    *(f"{path}\n{path.read_text()}" for path in self.folder.rglob("*.log")),
                ]
            ),
            PATIENCE,
        )

    def wait(self, run: RunDir) -> str:
        self.until(lambda: run.state() in FINAL, run)
        return run.state()

    def end(self) -> None:
        for run in self.runs:
            last = run.last_state()
            if last["state"] not in FINAL and (who := Identity.from_json(last)) and is_alive(who):
                os.kill(last["pid"], signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        for run in self.runs:
            self.until(lambda run=run: not run_processes(run.id), run)


@pytest.fixture
def machines(tmp_path):
    here = Machines(tmp_path)
    try:
        yield here
    finally:
        here.end()


def up(run: RunDir) -> bool:
    return all(run.log(rank).exists() and "up" in run.log(rank).read_text() for rank in (0, 1))


@pytest.mark.tier("smoke", "env-True")
@pytest.mark.parametrize(("gang", "shared"), [("hosts", False), ("hosts", True), ("env", True)])
def test_two_machines_train_together(machines, gang, shared):
    run = machines.launch(ALL_REDUCE, procs=2, gang=gang, shared=shared)
    assert machines.wait(run) == "succeeded"
    names = ["host0", "host1"] if gang == "hosts" else ["pod0", "pod1"]
    assert [run.log(rank).read_text().splitlines()[0].split() for rank in range(4)] == [
        ["6", str(rank), str(rank % 2), str(rank // 2), "4", names[rank // 2]] for rank in range(4)
    ]
    assert all(len(run.log(rank).read_text().splitlines()) == 1 for rank in range(4)), (
        "nothing is written twice"
    )
    assert events(run, "placed")[0]["nodes"] == names
    assert {event["node"] for event in events(run, "resource")} == set(names)
    assert not any("worker" in path.name for path in (machines.stores[1]).rglob("events/*")) or shared


@pytest.mark.tier("smoke")
def test_a_failure_elsewhere_is_the_runs_failure(machines):
    run = machines.launch(
        "import os, time\nprint('up', flush=True)\nif os.environ['RANK'] == '1': raise ValueError('no such"
        " column')\ntime.sleep(600)"
    )
    assert machines.wait(run) == "failed"
    failure = explain_failure(run)
    assert (failure.type, failure.rank, failure.node) == (
        "ValueError",
        1,
        "host1",
    ) and failure.place.line == 3, failure
    assert json.loads(run.result_file.read_text())["failure"]["node"] == "host1"


def test_a_machine_that_dies_is_named(machines):
    run = machines.launch(WAITS)
    machines.until(lambda: up(run), run)
    follower = machines.processes[0]
    os.killpg(follower.pid, signal.SIGKILL)
    for pid in run_processes(run.id, "FSDL_NODE_RANK=1"):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert machines.wait(run) == "failed"
    assert explain_failure(run).text().startswith("The run failed: host1 was lost"), explain_failure(
        run
    ).text()


@pytest.mark.tier("long", "9")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_machine_that_is_taken_away_starts_the_run_again(machines, how):
    "Where the engine starts a run again: all machines ask for it, and the next life is the same run's."
    run = machines.launch(
        "import os, time\nprint('up', flush=True)\nwhile not os.path.exists(os.environ['FSDL_RUN_DIR'] +"
        " '/../../../enough'): time.sleep(0.1)\n",
        gang="env",
        shared=True,
        requeue="engine",
    )
    machines.until(lambda: up(run), run)
    follower, leader = machines.processes
    below = run_processes(run.id, "FSDL_NODE_RANK=1") if how == signal.SIGKILL else []
    follower.send_signal(how)  # first: it must not see the others end
    for pid in below:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    machines.until(lambda: leader.poll() is not None and follower.poll() is not None, run)
    assert (leader.returncode, follower.returncode) == (85, 85 if how == signal.SIGTERM else -signal.SIGKILL)
    (restart,) = events(run, "restart")
    assert (
        run.state() == "queued"
        and restart["cause"] == "node"
        and restart["reason"] == "pod1 was lost"
        and not events(run, "failure")
    )
    (run.path.parent.parent.parent / "enough").touch()
    for rank in (1, 0):
        machines.start(run.path, rank, 4, "env", rank)
    assert machines.wait(run) == "succeeded"


def test_a_cancel_that_a_further_machine_hears_first_is_a_cancel(machines):
    run = machines.launch(WAITS, gang="env", shared=True, requeue="engine")
    machines.until(lambda: up(run), run)
    write_json(run.path / "cancel.json", {"by": "somebody"})
    machines.processes[0].send_signal(signal.SIGTERM)
    assert machines.wait(run) == "cancelled", (run.last_state(), events(run, "failure"))
    assert run.last_state()["reason"] == "cancelled by somebody"


def test_the_end_of_the_leading_machine_is_the_end_of_all(machines):
    run = machines.launch(WAITS)
    machines.until(lambda: up(run), run)
    leader = machines.processes[1]
    os.kill(leader.pid, signal.SIGKILL)
    machines.until(lambda: machines.processes[0].poll() is not None and not run_processes(run.id), run)
    assert machines.wait(run) == "lost"


def test_cancel_reaches_every_machine(machines):
    run = machines.launch("""
        import os, signal, sys, time
        def save(*_):
            print("saved", flush=True); sys.exit(143)
        signal.signal(signal.SIGTERM, save)
        print("up", flush=True)
        time.sleep(600)
        """)
    machines.until(lambda: up(run), run)
    write_json(run.path / "cancel.json", {"by": "somebody"})
    os.kill(run.last_state()["pid"], signal.SIGTERM)
    assert machines.wait(run) == "cancelled" and run.last_state()["reason"] == "cancelled by somebody"
    assert all("saved" in run.log(rank).read_text() for rank in (0, 1))
    assert not events(run, "failure")


def test_every_machine_goes_on_from_the_same_checkpoint(machines):
    "The file lies on the first machine's disk alone."
    earlier = create_run_dir(machines.stores[0], Job("script", "job"))
    with zipfile.ZipFile(earlier.checkpoints / "last.ckpt", "w") as file:
        file.writestr("data", secrets.token_bytes(3_000_000))
    earlier.writer("rank0", 0).write(Checkpoint(path="checkpoints/last.ckpt", step=7))
    run = machines.launch(
        "import hashlib, os\nprint(hashlib.sha256(open(os.environ['FSDL_RESUME'], 'rb').read()).hexdigest())",
        resume=earlier.id,
    )
    assert machines.wait(run) == "succeeded", explain_failure(run)
    digest = hashlib.sha256((earlier.checkpoints / "last.ckpt").read_bytes()).hexdigest()
    assert [run.log(rank).read_text().strip() for rank in (0, 1)] == [digest, digest]


@pytest.mark.tier("long")
def test_two_gangs_take_turns(machines, monkeypatch):
    """Each wants three of the four slots of both machines: they run one after the other, whatever they were
    started on first.
    """
    text = (
        "import os, time\nprint(time.time(), flush=True)\nwhile not"
        f" os.path.exists({str(machines.folder / 'enough')!r}):"
        " time.sleep(0.05)\ntime.sleep(1)\nprint(time.time())"
    )
    runs = [machines.launch(text, procs=3) for _ in range(3)]
    machines.until(
        lambda: any(
            "waiting for 3 of 4 cpu slots" in event["reason"]
            for run in runs
            for event in events(run, "state")
        ),
        runs[-1],
    )
    (machines.folder / "enough").touch()
    assert [machines.wait(run) for run in runs] == ["succeeded"] * 3
    told = [[float(line) for rank in range(6) for line in run.log(rank).read_text().split()] for run in runs]
    times = sorted((min(moments), max(moments)) for moments in told)
    assert all(len(moments) == 12 for moments in told) and all(
        end <= start for (_, end), (start, _) in zip(times, times[1:])
    )
    for number in (0, 1):
        monkeypatch.setenv("FSDL_STATE", str(machines.folder / f"machine {number}" / "state"))
        machines.until(lambda: slots_table() == [], runs[-1])  # given back a moment after the last word


def test_a_machine_without_room_refuses(machines):
    run = machines.launch(WAITS, procs=8)
    assert machines.wait(run) == "failed"
    assert "8 process slots were asked for" in explain_failure(run).message
