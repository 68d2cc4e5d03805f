"""The Ray target on a real cluster: a head and two workers with two counted GPUs each, all on this machine
(tests/support/ray_cluster.py).
"""

import contextlib
import http.server
import json
import os
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest
from following import ended_by_one_look, events, until
from ray_cluster import RayCluster as Cluster
from ray_cluster import ray_missing

from fsdl_dev.core.errors import FsdlError
from fsdl_dev.core.event_kinds import State
from fsdl_dev.core.events import read_events
from fsdl_dev.core.job import Job, LaunchRecord, Resources
from fsdl_dev.core.rundir import RunDir, create_run_dir, read_json
from fsdl_dev.core.settings import open_store
from fsdl_dev.core.states import FINAL
from fsdl_dev.engines.contract import EngineContract, contract_project, submit_job, wait_for
from fsdl_dev.engines.ray.client import RayCluster as Api
from fsdl_dev.engines.ray.target import RayRecord
from fsdl_dev.engines.remote.engine import write_record
from fsdl_dev.engines.target import get_target
from fsdl_dev.worker.processes import run_processes, who_asks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(ray_missing()), reason=ray_missing() or "Ray is here"),
    pytest.mark.timeout(1500),
]
PATIENCE = 300  # seconds; a test that needs more has failed
START_TIMEOUT = 30  # seconds that the head lets a job wait for its resources (Ray's default: 900)

# slow.py of the contract ends after two minutes
LONG = "import time\nfor step in range(10_000):\n    print('step', step, flush=True)\n    time.sleep(0.2)\n"
SLOW_GANG = """\
import torch, time, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(3000):
    dist.all_reduce(torch.ones(1))
    print("step", step, flush=True)
    time.sleep(0.2)
"""
SAVES = """\
import os, signal, subprocess, sys, time
helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])  # as a data loader's process
def save(*_):
    time.sleep(5)  # longer than the three seconds after which Ray kills by default
    print("saved with helper", "alive" if helper.poll() is None else "dead", flush=True)
    helper.kill()
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
print("gpus", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def cluster():
    if " " in sys.executable:  # a shell line of its own has no quotes
        pytest.skip(f"Ray starts no node from a path with a space: {sys.executable}")
    with Cluster(environment={"RAY_JOB_START_TIMEOUT_SECONDS": str(START_TIMEOUT)}) as running:
        yield running


@pytest.fixture
def whole(cluster):
    """The cluster with all its nodes, whatever the test before has done, and with no job left."""
    for name in ("w1", "w2"):
        if (
            name in cluster.nodes and cluster.nodes[name].poll() is not None
        ):  # it did not outlast the test before
            cluster.kill_node(name)
        if name not in cluster.nodes:
            cluster.start_node(name)
    until(lambda: len(cluster.alive()) == 3, "the nodes are back")
    yield cluster
    api = Api(cluster.address, timeout=60)
    for job_id, job in api.list_jobs().items():
        if job.is_open:
            api.stop(job_id)


class Lab:
    """A project with a Ray target; its storage is another folder, so that files travel as to a cluster elsewhere."""

    def __init__(self, folder: Path, cluster: Cluster, **fields):
        self.cluster, self.api = cluster, Api(cluster.address, timeout=60)
        given = {
            "kind": "ray",
            "address": cluster.address,
            "storage": str(folder / "far störage"),
            "python": sys.executable,
            "grace_seconds": 20.0,
            **fields,
        }
        self.project = contract_project(folder / "prøject", "lab", given)
        self.target = get_target("lab", self.project)

    def launch(self, script: str, *args: str, **resources) -> RunDir:
        """Launch one of the contract's programs, or a text."""
        if "\n" in script:
            (self.project.root / "program.py").write_text(textwrap.dedent(script))
            script = "program.py"
        return submit_job(self.target, self.project, script, *args, resources=Resources(**resources))

    def wait(self, run: RunDir, states=FINAL, until=lambda: False) -> dict:
        return wait_for(self.target, run, states, PATIENCE, until)

    def say(self, run: RunDir, words: str, rank: int = 0) -> None:
        """Wait until a rank has printed something."""
        self.wait(run, (), lambda: words in self.target.logs(run, rank)[0] or run.state() in FINAL)
        assert words in self.target.logs(run, rank)[0], (run.last_state(), self.target.logs(run, rank)[0])

    def queue_events(self, run: RunDir) -> list[dict]:
        return events(run, "queue")

    def job(self, run: RunDir) -> dict:
        return self.api.job(self.target.engine.record(run).id)


@pytest.fixture
def lab(tmp_path, whole):
    return Lab(tmp_path, whole)


def node_of(run: RunDir) -> str:
    """The cluster's name of the node that the first agent or worker of a run is on."""
    address = read_json(run.path / "placement.json").get("hosts") or events(run, "placed")[-1]["nodes"]
    return f"w{int(address[0].rpartition('.')[2]) - 11}"


@pytest.mark.tier("long")
def test_jobs_api(whole):
    """The client against the real thing: once is once, and what is not there is said."""
    api = Api(whole.address)
    assert api.version()["ray_version"].startswith("2.")
    name = f"twice-{time.time()}"
    assert api.submit(name, "echo grüße; sleep 1", metadata={"a": "b"})
    assert not api.submit(name, "echo never")
    until(lambda: api.job(name).status == "SUCCEEDED", "the job ends")
    assert "grüße" in api.logs(name) and "never" not in api.logs(name)
    assert api.job("nobody") is None and not api.stop("nobody")
    nodes = api.nodes()
    assert sorted((node.address, node.gpus) for node in nodes if node.alive) == [
        ("127.0.0.11", 0),
        ("127.0.0.12", 2),
        ("127.0.0.13", 2),
    ]


def test_wrong_addresses(whole, tmp_path):
    """Doors that are not the Jobs API's, tried for real: Ray's own port speaks no HTTP, the dashboard's agent
    knows no jobs.
    """
    for port in (whole.port, whole.ports["w1"]):
        with pytest.raises(FsdlError) as told:
            Api(f"http://127.0.0.{11 if port == whole.port else 12}:{port}", timeout=5).version()
        assert told.value.fix


@pytest.mark.tier("long")
def test_token_authentication(tmp_path, monkeypatch):
    """A cluster that asks for a token: without one, with a wrong one, with the person's own, and a driver that
    has to reach Ray there.
    """
    monkeypatch.setenv("HOME", str(tmp_path))
    with Cluster(workers=0, environment={"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "right"}) as cluster:
        with pytest.raises(FsdlError) as told:
            Api(cluster.address).nodes()
        assert told.value.what == "The Ray cluster asks who you are." and "RAY_AUTH_TOKEN" in told.value.fix
        monkeypatch.setenv("RAY_AUTH_TOKEN", "wrong")
        with pytest.raises(FsdlError, match="does not accept the token"):
            Api(cluster.address).nodes()
        monkeypatch.delenv("RAY_AUTH_TOKEN")
        (tmp_path / "token").write_text("right\n")
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
        lab = Lab(tmp_path, cluster, max_restarts=1)  # no direct job: the driver needs the token too
        run = lab.launch("once.py", gpus=0)
        assert lab.wait(run)["state"] == "succeeded", run.last_state()


def test_look_and_refusals(lab):
    """What there is, and what can never run: refused before anything is written."""
    look = lab.target.look()
    assert (look.reachable, look.gpus) == (True, 4) and "3 nodes" in look.detail
    for asked, words in (({"gpus": 3}, "no node of the cluster can hold that"),
        ({"nodes": 3, "gpus": 1}, "2 nodes of the cluster can hold that"),
                         ({"procs": 64, "gpus": 0}, "64 processors")):  # fmt: skip
        with pytest.raises(FsdlError) as told:
            lab.launch("once.py", **asked)
        assert words in told.value.what and told.value.fix
    assert not os.listdir(lab.project.store / "runs")


@pytest.mark.tier("long")
def test_submitted_once(lab):
    """A launch that is cut off after the request and repeated by another launcher starts nothing twice."""
    run = lab.launch("once.py", gpus=1)
    far = lab.target.engine.far(run.id)
    jobs = set(lab.api.list_jobs())
    again = lab.target.engine.submit_as(run, run.id, True, {"CPU": 1.0}, far)
    assert again.id == run.id and set(lab.api.list_jobs()) == jobs
    (run.path / "engine.json").unlink()
    assert lab.wait(run)["state"] == "succeeded", (
        f"{run.last_state()} {lab.api.job(run.id)} {lab.api.logs(run.id)}"
    )
    assert lab.target.logs(run)[0] == "once\n"


@pytest.mark.tier("long")
@pytest.mark.parametrize("route", ["direct", "waiting"])
def test_cancel_leaves_time_to_save(lab, route, monkeypatch):
    """A cancelled run gets its grace, not Ray's three seconds, and the job's own helpers live until it has saved."""
    if route == "waiting":
        monkeypatch.setattr(lab.target.engine.view, "take", lambda *_: False)
    run = lab.launch(SAVES, gpus=2)
    lab.say(run, "gpus 0,1")
    assert lab.target.engine.record(run).direct is (route == "direct")
    lab.target.cancel(run)
    last = lab.wait(run)
    assert last["state"] == "cancelled" and f"cancelled by {who_asks()}" in last["reason"], last
    assert "saved with helper alive" in lab.target.logs(run)[0]
    until(lambda: not lab.job(run).is_open, "Ray's job ends too")
    assert not run_processes(run.id)


@pytest.mark.tier("long")
def test_queue_reasons_outlast_rays_own_patience(lab):
    """A full cluster: the run says what it waits for, waits longer than Ray lets a job wait, starts when there
    is room, and can be cancelled at any time.
    """
    first, second = lab.launch(LONG, gpus=2), lab.launch(LONG, gpus=2)
    for run in (first, second):
        lab.wait(run, {"running", *FINAL})
        assert run.state() == "running", run.last_state()
    waiting, other = lab.launch("once.py", gpus=2), lab.launch("once.py", gpus=1)
    began = time.monotonic()
    lab.wait(
        waiting,
        FINAL,
        lambda: any("0 of 4 GPUs are free" in event["reason"] for event in lab.queue_events(waiting)),
    )
    assert (
        waiting.state() == "queued"
        and "waiting for 2 GPUs and 1 processor on one machine" in lab.queue_events(waiting)[-1]["reason"]
    )

    def rows() -> dict:
        return {row.run: row.state for row in lab.target.queue()}

    lab.wait(
        waiting, FINAL, lambda: rows().get(waiting.id) == "queued"
    )  # its driver has to ask Ray for its place first
    assert rows()[first.id] == "running"
    lab.target.cancel(other)
    assert lab.wait(other)["state"] == "cancelled"
    while time.monotonic() - began < START_TIMEOUT + 5:
        assert lab.target.poll(waiting) == "queued", waiting.last_state()
        time.sleep(1)
    lab.target.cancel(first)
    assert lab.wait(waiting)["state"] == "succeeded", waiting.last_state()
    assert lab.wait(first)["state"] == "cancelled" and second.state() == "running"
    lab.target.cancel(second)
    assert lab.wait(second)["state"] == "cancelled"
    head = (lab.cluster.folder / "session_latest" / "logs" / "gcs_server.out").read_text(errors="replace")
    assert head.count("Failed to waiting for placement group") < 10, (
        "the waiting drivers kept the head busy"
    )  # one line for each question that was left behind


@pytest.mark.tier("long")
def test_a_gang_that_waits_holds_nothing(lab):
    """One of its two machines is free, and stays free for others: a gang gets all of its machines or none."""
    first = lab.launch(LONG, gpus=2)
    lab.wait(first, {"running", *FINAL})
    gang = lab.launch("gang.py", nodes=2, gpus=2)
    lab.wait(
        gang,
        FINAL,
        lambda: any(
            "waiting for 2 machines with 2 GPUs and 1 processor each" in event["reason"]
            for event in lab.queue_events(gang)
        ),
    )
    assert gang.state() == "queued", gang.last_state()
    other = lab.launch("once.py", gpus=2)
    assert (
        lab.wait(other)["state"] == "succeeded" and first.state() == "running" and gang.state() == "queued"
    ), (other.last_state(), gang.last_state())
    lab.target.cancel(first)
    assert lab.wait(gang)["state"] == "succeeded", gang.last_state()
    assert {rank: lab.target.logs(gang, rank)[0].strip() for rank in (0, 1)} == {
        rank: f"rank {rank} of 2 sum 3 node {rank}" for rank in (0, 1)
    }


@pytest.mark.tier("long")
def test_starved_direct_job_is_submitted_again(lab, monkeypatch):
    """The GPUs that were free are taken just before the request arrives: Ray gives up after its time, and the
    run waits on, under its own name.
    """
    full = [lab.launch(LONG, gpus=2) for _ in range(2)]
    for run in full:
        lab.wait(run, {"running", *FINAL})
    monkeypatch.setattr(lab.target.engine.view, "take", lambda *_: True)
    run = lab.launch("once.py", gpus=2)
    lab.wait(run, FINAL, lambda: lab.target.engine.record(run).submissions == 2)
    assert run.state() == "queued" and lab.target.engine.record(run).id == f"{run.id}.2"
    lab.target.cancel(full[0])
    assert lab.wait(run)["state"] == "succeeded", run.last_state()
    assert sum(event.get("state") == "running" for event in read_events(run.events)) == 1
    lab.target.cancel(full[1])
    lab.wait(full[1])


@pytest.mark.tier("long")
def test_dead_driver_ends_the_run(lab):
    """kill -9 of the driver on the head: the processes on both nodes end, and the run does not stay `running`."""
    run = lab.launch(SLOW_GANG, nodes=2, gpus=1)
    lab.say(run, "step 3", rank=1)
    drivers = [
        process
        for process in psutil.process_iter()
        if "ray_gang.py" in " ".join(_words(process))
        and str(Path(lab.target.engine.far(run.id).run)) == _folder(process)
    ]
    assert len(drivers) == 1
    drivers[0].kill()
    assert lab.wait(run)["state"] in ("lost", "failed"), run.last_state()
    until(lambda: not run_processes(run.id), "no process of the run is left")


def _words(process: psutil.Process) -> list[str]:
    """A process's command line; [] for one that is gone."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _folder(process: psutil.Process) -> str:
    try:
        return process.cwd()
    except psutil.Error:
        return ""


def test_one_look_says_that_a_run_was_lost_and_when(tmp_path):
    """Ray dates the end, long before anybody looked: by its record, as the Jobs API gives it."""
    at, told = time.time() - 3600, []

    class Jobs(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(told if self.path == "/api/jobs/" else {}).encode())

        def log_message(self, *ignored):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Jobs) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        given = {
            "kind": "ray",
            "address": address,
            "storage": str(tmp_path / "far"),
            "python": sys.executable,
        }
        project = contract_project(tmp_path / "prøject", "lab", given)
        job = Job(kind="script", name="x", script="once.py", resources=Resources())
        run = create_run_dir(open_store(project), job, LaunchRecord(target="lab"))
        write_record(run, RayRecord(kind="ray", name="lab", fields=given, id=run.id, address=address))
        run.set_state(run.writer("launcher"), "queued", "submitted")
        run.writer("worker").write(State(state="running", reason="1 process started"))
        message = "Job supervisor actor died because its node is dead."
        told.append({"submission_id": run.id, "status": "FAILED", "message": message, "end_time": at * 1000})
        last = ended_by_one_look(get_target("lab", project), run)
        server.shutdown()
    assert last["state"] == "lost" and "the node that it ran on was lost" in last["reason"], last
    assert abs(last["ended"] - at) < 0.01


@pytest.mark.tier("long")
def test_many_runs_cost_one_request(lab, monkeypatch):
    """However many runs are looked at, the cluster is asked for its jobs once."""
    runs = [lab.launch("once.py", gpus=0) for _ in range(3)]
    for run in runs:
        assert lab.wait(run)["state"] == "succeeded", run.last_state()
    asked = []
    call = lab.api.call
    monkeypatch.setattr(
        lab.target.engine.api, "call", lambda path, *rest: asked.append(path) or call(path, *rest)
    )
    assert set(lab.target.engine.poll(runs)) == {run.id for run in runs}
    assert asked == ["/api/jobs/"]


def test_dry_run_asks_for_nothing(lab):
    """What the engine would get, to be read."""
    from fsdl_dev.core.job import Job

    text = lab.target.plan(
        Job(kind="script", name="x", script="once.py", resources=Resources(nodes=2, gpus=2)), lab.project
    )
    assert (
        "2 machines with 2 GPUs and 1 processor each, all or none" in text
        and "fsdl_dev.worker.worker" in text
    )


@pytest.mark.tier("long", "test_submitted_once")
@pytest.mark.tier("smoke", "test_launch_and_non_ascii_and_fetch")
class TestContract(EngineContract):
    """What every target does."""

    # each job of Ray's starts a process of its own on the head first: 200 take many minutes on two cores
    crowd = 12
    seconds = PATIENCE

    @pytest.fixture(autouse=True)
    def _cluster(self, whole, tmp_path):
        self.ray, self.far = whole, tmp_path / "far"

    def fields(self) -> dict:
        return {
            "kind": "ray",
            "address": self.ray.address,
            "storage": str(self.far),
            "python": sys.executable,
            "max_restarts": 1,
        }

    def kill_worker(self, run: RunDir) -> None:
        who = [event for event in events(run, "state") if event.get("pid")][-1]
        for process in (*psutil.Process(who["pid"]).children(recursive=True), psutil.Process(who["pid"])):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def running(self, folder: Path, script: str = "slow.py"):
        """The run that is requeued has to be one that a driver looks after: a direct one is Ray's own affair."""
        if script == "lives.py":
            target, _ = self.open(folder)
            target.engine.view.take = lambda *_: False
        return super().running(folder, script)

    def requeue(self, run: RunDir) -> None:
        name = node_of(RunDir(self.far / "runs" / run.id))
        if name == "w0":  # on the head
            pytest.fail("the run was placed on the head")
        self.ray.kill_node(name)
        self.ray.start_node(name)


# At the end: the node that is lost here is not started again for another test.
@pytest.mark.tier("long", "1")
@pytest.mark.parametrize("number", [0, 1])
def test_lost_node_is_named_and_the_rest_ended(lab, number):
    """kill -9 of one of two nodes, the first and the second: the run fails with that node's name, and no
    process is left on the other.
    """
    run = lab.launch(SLOW_GANG, nodes=2, gpus=1)
    lab.say(run, "step 3", rank=1)
    hosts = read_json(Path(lab.target.engine.far(run.id).run) / "placement.json")["hosts"]
    lab.cluster.kill_node(f"w{int(hosts[number].rpartition('.')[2]) - 11}")
    last = lab.wait(run)
    assert last["state"] == "failed" and f"the node {hosts[number]} was lost" in last["reason"], last
    until(lambda: not run_processes(run.id), "no process of the run is left")
    until(lambda: lab.job(run).status == "FAILED", "Ray has heard of the driver's end")


@pytest.mark.tier("long")
def test_lost_node_and_another_life(tmp_path, whole):
    """With max_restarts, the whole gang waits for its machines again and goes on under the same run id."""
    lab = Lab(tmp_path, whole, max_restarts=1)
    run = lab.launch(SLOW_GANG, nodes=2, gpus=1)
    lab.say(run, "step 3", rank=1)
    hosts = read_json(Path(lab.target.engine.far(run.id).run) / "placement.json")["hosts"]
    name = f"w{int(hosts[1].rpartition('.')[2]) - 11}"
    whole.kill_node(name)
    lab.wait(run, {"queued", *FINAL})
    assert run.state() == "queued", run.last_state()
    whole.start_node(name)
    lab.wait(run, {"running", *FINAL})
    assert run.state() == "running", run.last_state()
    events = read_events(run.events)
    assert [event["count"] for event in events if event["kind"] == "restart"] == [1]
    assert any(hosts[1] in event["text"] for event in events if event["kind"] == "note")
    lab.target.cancel(run)
    assert lab.wait(run)["state"] == "cancelled"
