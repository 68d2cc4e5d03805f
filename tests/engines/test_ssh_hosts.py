"""The SSH target on two machines of their own: a rendezvous across hosts, and several users on one box."""

import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from following import events, states, until
from hosts import machines, why_no_namespaces
from ssh_lab import UNTIL, opened_lab, told, until_log, until_state

from fsdl_dev.core.errors import FsdlError
from fsdl_dev.core.states import FINAL

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_no_namespaces()), reason=why_no_namespaces() or "-"),
]


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    with machines(
        tmp_path_factory.mktemp("net"), ["gpu1", "gpu2"], gpu1={"gpus": 2}, gpu2={"loopback_name": True}
    ) as net:
        yield net


PYTHON = shlex.quote(sys.executable)
HOLD = """
import sys, time
from fsdl_dev.worker.devices import visible_gpus
from fsdl_dev.worker.slots import lease, slots_table

with lease(
    "local/gpu",
    visible_gpus(),
    int(sys.argv[2]),
    sys.argv[1],
    on_wait=lambda position, ahead: print("waits", position, ",".join(ahead), flush=True),
) as held:
    print("holds", ",".join(map(str, held)), flush=True)
    sys.stdin.readline()
"""


def hold(net, user: str, run: str, gpus: int) -> subprocess.Popen:
    "A process of a user that leases GPUs of gpu1 and keeps them until it is told."
    command = f"{PYTHON} -P /run/fsdl-host/hold.py {run} {gpus}"
    Path(net["gpu1"].folder, "hold.py").write_text(textwrap.dedent(HOLD))
    return subprocess.Popen(
        ["ssh", "-F", str(net.config), f"{user}@gpu1", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_two_users_of_one_box_never_get_the_same_gpu(net):
    "Nobody configured anything: the tickets for GPUs are the machine's."
    first, second = hold(net, "ann", "anns-run", 1), None
    try:
        assert first.stdout.readline() == "holds 0\n"
        second = hold(net, "bob", "bobs-run", 2)
        assert second.stdout.readline() == "waits 1 anns-run\n"
        table = (
            net["gpu1"]
            .ssh(
                f"{PYTHON} -P -c 'from fsdl_dev.worker.slots import slots_table; print([(r.user,"
                " r.slots, r.alive) for r in slots_table()])'"
            )
            .stdout
        )
        assert table == "[('ann', (0,), True), ('bob', None, True)]\n"
        net["gpu1"].inside(
            shell="kill -9 $(pgrep -u ann -f hold.py)"
        )  # ann's process cannot give anything back: bob notices
        assert second.stdout.readline() == "holds 0,1\n"
    finally:
        for process in (first, second):
            if process:
                process.stdin.close()
                process.wait(120)
    assert net["gpu1"].inside(
        shell="stat -c %a /var/tmp/fsdl_dev /var/tmp/fsdl_dev/slots-* /var/tmp/fsdl_dev/slots-*/lock"
    ).split() == ["1777", "1777", "644"]


# --- several hosts
# -----------------------------------------------------------------------------------------------------

REDUCE = """
import os, socket, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.full((2,), float(dist.get_rank() + 1))
dist.all_reduce(x)
print("rank", dist.get_rank(), "of", dist.get_world_size(), "on", socket.gethostname(), "sum", int(x[0]), flush=True)
if len(sys.argv) > 1:
    print("up", flush=True)
    for step in range(100_000):
        dist.all_reduce(x.fill_(1.0))
        time.sleep(0.1)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture
def lab(net, tmp_path, monkeypatch):
    with opened_lab(tmp_path, net, monkeypatch, hosts=["gpu2", "gpu1"]) as here:
        yield here


def nothing_left(net, run) -> bool:
    "Whether no process of a run is left on any host."
    asked = (
        "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep FSDL_RUN_ID; pgrep -f"
        " '[f]sdl_dev.launch' || true"
    )
    return not any(
        net[name].inside(shell=asked, check=False).strip() for name in net.hosts if net[name].process
    )


def test_four_processes_on_two_hosts(lab, net):
    "Two on each; one of them calls itself 127.0.1.1, as Debian does."
    run = lab.launch(REDUCE, nodes=2, procs=2)
    assert run.wait(300, progress=False).state == "succeeded", told(run)
    lines = [run.logs(rank).splitlines()[-1] for rank in range(4)]
    assert lines == [f"rank {rank} of 4 on gpu{1 + rank // 2} sum 10" for rank in range(4)]
    assert run.view.machines.nodes == ("gpu1", "gpu2") or list(run.view.machines.nodes) == ["gpu1", "gpu2"]
    until(lambda: nothing_left(net, run))


def test_a_failure_on_the_second_host_is_the_reason(lab, net):
    run = lab.launch(
        REDUCE.replace('print("rank"', 'dist.get_rank() == 3 and {}["deep"]\nprint("rank"'),
        "on",
        nodes=2,
        procs=2,
    )
    assert run.wait(300, progress=False).state == "failed", told(run)
    assert "KeyError" in run.failure.text() and run.failure.rank == 3, run.failure.text()
    until(lambda: nothing_left(net, run))


def test_a_host_that_is_switched_off_fails_the_run_and_frees_the_other(lab, net):
    run = lab.launch(REDUCE, "on", nodes=2, procs=1)
    until_log(run, "up")
    net["gpu2"].switch_off()
    try:
        assert until_state(run, *FINAL) == "failed", told(run)
        assert "gpu2" in run.view.reason
        assert (
            run.failure.text().splitlines()[0] == "The run failed: gpu2 was lost"
            and run.failure.command == "launch again"
        ), run.failure.text()
        until(lambda: nothing_left(net, run))
    finally:
        net["gpu2"].boot()


def test_an_unplugged_leader_loses_the_run_and_frees_the_other(lab, net):
    """The first host falls silent.

    The second gives its slots back by itself; the run is found to have failed when the first is back.
    """
    run = lab.launch(REDUCE, "on", nodes=2, procs=1)
    until_log(run, "up")
    net["gpu1"].unplug()
    try:
        until(lambda: "fsdl_dev" not in net["gpu2"].inside(shell="ps ax"), "for gpu2 to be free")
    finally:
        net["gpu1"].plug()
    assert until_state(run, *FINAL) == "failed", told(run)
    assert "gpu2" in run.view.reason
    until(lambda: nothing_left(net, run))


def test_cancel_reaches_both_hosts(lab, net):
    run = lab.launch(REDUCE, "on", nodes=2, procs=2)
    until_log(run, "up")
    run.cancel()
    assert until_state(run, *FINAL) == "cancelled", told(run)
    until(lambda: nothing_left(net, run))


def test_two_gangs_on_the_same_hosts_take_turns(lab, net, monkeypatch):
    """Launched at the same moment, each needs all of both machines: the slots are taken in one order, so
    neither waits for the other for ever.
    """
    lab.configure(kind="ssh", hosts=["gpu1", "gpu2"], python=sys.executable, slots=1)
    lab.file("reduce.py", REDUCE)
    launchers = [
        lab.launcher(
            "run = lab.launch(Path('reduce.py').read_text(), nodes=2, name='reduce.py'); run.wait(400,"
            " progress=False); say(run.state)"
        )
        for _ in range(2)
    ]
    said = [launcher.communicate(timeout=450) for launcher in launchers]
    assert [out for out, _ in said] == ["succeeded\n"] * 2, said


def test_one_node_goes_where_there_is_room(lab, net, tmp_path):
    lab.configure(kind="ssh", hosts=["gpu1", "gpu2"], python=sys.executable, slots=1)
    first = lab.launch(UNTIL, "/var/tmp/never")
    until_log(first, "up")
    second = lab.launch(UNTIL, "/var/tmp/never")
    until_log(second, "up")
    where = {
        run.view.machines.nodes[0] if run.view.machines.nodes else run.dir.path.name
        for run in (first, second)
    }
    assert len({first.target.engine.hosts_of(run.id) for run in (first, second)}) == 2, where
    look = first.target.look()
    assert look.reachable and look.gpus == 2 and look.running == 2 and "gpu1" in look.detail
    assert {row.host for row in first.target.queue()} == {"gpu1", "gpu2"}


def test_more_machines_than_there_are(lab):
    with pytest.raises(FsdlError, match="3 machines were asked for") as caught:
        lab.launch(REDUCE, nodes=3)
    assert caught.value.fix.startswith("--nodes 2")


# --- hosts with one home folder
# -----------------------------------------------------------------------------------------

COUNT = """
import os, pathlib, sys
import torch, torch.distributed as dist
from fsdl_dev.core.events import current_writer
from fsdl_dev.core.event_kinds import Checkpoint
from fsdl_dev.train.loggers import log
dist.init_process_group("gloo")
rank = dist.get_rank()
resume = os.environ.get("FSDL_RESUME")
first = torch.load(resume)["step"] + 1 if resume else 0
print(f"rank {rank} begins at {first}", flush=True)
for step in range(first, first + 5):
    dist.barrier()
    print(f"rank {rank} step {step}", flush=True)
    if rank == 0: log(step, loss=1.0)
if rank == 0:
    folder = pathlib.Path(os.environ["FSDL_RUN_DIR"], "checkpoints")
    folder.mkdir(exist_ok=True)
    torch.save({"step": step}, folder / "last.ckpt")
    current_writer().write(Checkpoint(path="checkpoints/last.ckpt", step=step))
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def nfs(tmp_path_factory):
    "Two hosts whose users have the same home folder on both."
    home = tmp_path_factory.mktemp("nfs home")
    with machines(
        tmp_path_factory.mktemp("nfs"), ["left", "right"], left={"home": str(home)}, right={"home": str(home)}
    ) as net:
        yield net


@pytest.fixture
def common(nfs, tmp_path, monkeypatch):
    with opened_lab(tmp_path, nfs, monkeypatch, hosts=["left", "right"]) as here:
        yield here


def test_hosts_that_share_one_home_folder(common, nfs):
    """One run directory for both: each starts what is its own, nothing is written or brought twice, and the
    next run goes on from the checkpoint.
    """
    run = common.launch(COUNT, nodes=2, procs=2)
    assert run.wait(300, progress=False).state == "succeeded", told(run)
    for rank in range(4):
        assert [line for line in run.logs(rank).splitlines() if line.startswith("rank")] == [
            f"rank {rank} begins at 0",
            *(f"rank {rank} step {step}" for step in range(5)),
        ]
    assert [event["step"] for event in events(run, "metric")] == list(range(5)) and states(run) == [
        "queued",
        "starting",
        "running",
        "succeeded",
    ]
    there = {path.name for path in common.far(run).iterdir()}
    assert {
        "start.sh",
        "start.node1.sh",
        "placement.json",
        "placement.node1.json",
        ".started",
        ".started.node1",
    } <= there
    lines = [line for file in common.far(run, "events").iterdir() for line in file.read_text().splitlines()]
    assert len(lines) == len(set(lines))
    assert not list(run.path.glob("*.node1.*"))  # nothing of them is wanted here
    again = common.launch(COUNT, nodes=2, procs=1, resume=run.id)
    assert again.wait(300, progress=False).state == "succeeded", told(again)
    assert [again.logs(rank).splitlines()[-1] for rank in (0, 1)] == ["rank 0 step 9", "rank 1 step 9"]
    until(lambda: nothing_left(nfs, again))


def test_a_failure_on_hosts_that_share_one_home_folder(common, nfs):
    "The second host's failure is the reason, and is told once."
    run = common.launch(
        REDUCE.replace('print("rank"', 'dist.get_rank() == 1 and {}["deep"]\nprint("rank"'),
        "on",
        nodes=2,
        procs=1,
    )
    assert run.wait(300, progress=False).state == "failed", told(run)
    assert "KeyError" in run.failure.text() and run.failure.rank == 1, run.failure.text()
    assert len([event for event in events(run, "failure") if event.get("rank") == 1]) == 1
    until(lambda: nothing_left(nfs, run))
