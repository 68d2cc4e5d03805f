"""What happens between the allocation and the job: GPU tests first, a work folder, data that is there already,
a run to come after.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from following import events, until

from fsdl_dev.core.event_kinds import Phase, State
from fsdl_dev.core.job import Job, Resources
from fsdl_dev.core.rundir import RunDir, create_run_dir, write_json
from fsdl_dev.core.settings import find_project
from fsdl_dev.core.states import FINAL
from fsdl_dev.snapshot.take import take_snapshot
from fsdl_dev.worker.failures import explain_failure
from fsdl_dev.worker.processes import run_processes

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
PATIENCE = 300  # seconds; a test that needs more has failed
CELLS = [
    "# Kernels\n\n> Halves.",
    "#| default_exp kernels",
    "#| export\n\ndef halve(x):\n    return x / 2",
    "import math\nimport os",
    "raise RuntimeError('a cell without the flag')",
    "#| cuda\nassert halve(2) == 1 and math.pi\nprint('on', os.environ['CUDA_VISIBLE_DEVICES'])",
]


class Far:
    """The remote end of a scheduler that gives two GPUs: a worker started by hand, with placement.json as a target
    writes it.
    """

    def __init__(self, folder: Path):
        self.folder, self.store, self.workers = folder, folder / "far" / "störe", []

    def launch(
        self,
        project: Path,
        job: Job,
        gpus: str = "0,1",
        start: bool = True,
        runtime: str | None = None,
        **placement,
    ) -> RunDir:
        snapshot = take_snapshot(find_project(project))
        for part in ("snapshots", "blobs", "packs"):
            if (snapshot.store / part).exists():
                shutil.copytree(snapshot.store / part, self.store / part, dirs_exist_ok=True)
        run = create_run_dir(self.store, job)
        write_json(run.snapshot_file, {"digest": snapshot.digest})
        write_json(
            run.path / "placement.json",
            {
                "target": "cloud",
                "kind": "sky",
                "project": str(run.path / "work"),
                "store": str(self.store),
                "grace_seconds": 5.0,
                "allocation": "engine",
                "gang": None,
                "requeue": None,
                "gpu_tests": True,
                "runtime": runtime,
                **placement,
            },
        )
        run.set_state(run.writer("launcher"), "queued", "submitted")
        if start:
            self.start(run, gpus, runtime)
        return run

    def start(self, run: RunDir, gpus: str = "0,1", runtime: str | None = None) -> subprocess.Popen:
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpus, "PYTHONPATH": runtime or str(ROOT)}
        with open(run.worker_log, "ab") as log:
            worker = subprocess.Popen(
                [sys.executable, "-P", "-m", "fsdl_dev.worker.worker", str(run.path)],
                env=environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=run.path,
                start_new_session=True,
            )
        self.workers.append((run, worker))
        return worker

    def wait(self, run: RunDir, states=FINAL) -> str:
        until(
            lambda: run.state() in states,
            lambda: f"{run.last_state()}\n{run.worker_log.read_text()}",
            PATIENCE,
        )
        return run.state()


@pytest.fixture
def far(tmp_path):
    here = Far(tmp_path)
    yield here
    for run, worker in here.workers:
        if worker.poll() is None and run.state() not in FINAL:
            worker.terminate()
        worker.wait(PATIENCE)
        until(lambda run=run: not run_processes(run.id), "its processes are left")


@pytest.fixture
def project(make_project):
    def build(*cells: str) -> Path:
        root = make_project(notebooks={"01 kernels.ipynb": [*CELLS, *cells]}, export=True)
        return root

    return build


def launched(**fields) -> Job:
    "A job of the notebook's launch cell."
    return Job(
        kind="cell",
        name="a test",
        source="print('trained', halve(4))",
        notebook="nbs/01 kernels.ipynb",
        module="smallproj.kernels",
        cell_id="launch",
        cell_number=9,
        resources=Resources(gpus=2),
        **fields,
    )


def phases(run: RunDir) -> list[tuple]:
    return [(event["name"], event["state"]) for event in events(run, "phase")]


def test_gpu_tests_come_first_and_pass(far, project):
    run = far.launch(project(), launched())
    assert far.wait(run) == "succeeded", run.worker_log.read_text()
    assert phases(run) == [
        (name, state) for name in ("environment", "gpu tests", "training") for state in ("start", "end")
    ]
    assert "on 0,1" in (run.logs / "gputests.log").read_text() and run.log(0).read_text() == "trained 2.0\n"


def test_a_failing_gpu_test_ends_the_run_at_once(far, project):
    run = far.launch(project("#| cuda\n#| slow\nvalue = halve(3)\nassert value == 1, value"), launched())
    assert far.wait(run) == "failed"
    failure = explain_failure(run)
    assert (
        failure.type == "AssertionError"
        and failure.place.file == "nbs/01 kernels.ipynb"
        and (failure.place.cell_id, failure.place.line) == ("cell06", 4)
    )
    assert not failure.place.launch and failure.place.source == "assert value == 1, value"
    assert phases(run)[-2:] == [("gpu tests", "start"), ("gpu tests", "fail")] and not run.log(0).exists(), (
        "the job never started"
    )
    reason = run.last_state()["reason"]
    assert (
        reason.startswith("a GPU test failed: AssertionError: 1.5; it cost ")
        and "GPU-seconds (2 GPUs for" in reason
    )
    print(failure.text())


def test_an_error_in_exported_code_lands_on_its_own_cell(far, project):
    run = far.launch(project("#| cuda\nhalve('three')"), launched())
    assert far.wait(run) == "failed"
    failure = explain_failure(run)
    assert (failure.place.cell_id, failure.place.source) == (
        "cell02",
        "return x / 2",
    ) and failure.via is None, failure


@pytest.mark.parametrize("how", ["os._exit(7)", "os.kill(os.getpid(), 11)"])
def test_a_gpu_test_that_dies_without_a_word(far, project, how):
    run = far.launch(project(f"#| cuda\n{how}"), launched())
    assert far.wait(run) == "failed" and "it cost" in run.last_state()["reason"]
    assert explain_failure(run).exit_code in (7, -11)


def test_no_gpu_tests_without_gpus_or_where_nobody_wants_them(far, project):
    root = project("#| cuda\nraise RuntimeError('never run')")
    for job, gpus, more in (
        (launched(), "0,1", {"gpu_tests": False}),
        (Job(kind="script", name="s", script="s.py", resources=Resources(gpus=0)), "", {}),
    ):
        (root / "s.py").write_text("print('trained')")
        run = far.launch(root, job, gpus, **more)
        assert (
            far.wait(run) == "succeeded"
            and "gpu tests" not in dict(phases(run))
            and "trained" in run.log(0).read_text()
        )


def test_a_cancel_during_the_gpu_tests(far, project):
    run = far.launch(
        project("#| cuda\nprint('sleeping', flush=True)\nimport time\ntime.sleep(600)"), launched()
    )
    end = time.monotonic() + PATIENCE
    while (
        not (run.logs / "gputests.log").exists() or "sleeping" not in (run.logs / "gputests.log").read_text()
    ):
        assert time.monotonic() < end
        time.sleep(0.05)
    os.kill(run.last_state()["pid"], signal.SIGTERM)
    assert far.wait(run) == "cancelled"


def test_the_second_life_does_not_test_again(far, project):
    run = far.launch(project("#| cuda\nprint('tested')"), launched(), start=False)
    first = run.writer("worker")
    first.write(State(state="running", reason="1 process started", host="another"))
    first.write(Phase(name="gpu tests", state="end"))
    far.start(run)
    assert far.wait(run) == "succeeded" and not (run.logs / "gputests.log").exists()
    (restart,) = events(run, "restart")
    assert restart["count"] == 1 and restart["cause"] == "node" and restart["from_step"] is None


def test_fewer_gpus_than_asked_is_said_in_plain_words(far, project):
    run = far.launch(project(), launched(), gpus="3")
    assert far.wait(run) == "failed" and "2 GPUs were asked for" in explain_failure(run).message


def test_the_work_folder_is_the_runs_own(far, project, tmp_path):
    root = project()
    (root / "data.txt").write_text("of the snapshot")
    (root / "look.py").write_text(
        "import os\nprint(os.getcwd() == os.environ['FSDL_PROJECT'], open('data.txt').read(),"
        " sorted(os.listdir('data/big')))\nopen('data.txt', 'a').write('!')\nimport"
        " fsdl_dev\nprint(fsdl_dev.__file__.startswith(os.environ.get('FSDL_RUNTIME', '?')))"
    )
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "a.bin").touch()
    runtime = tmp_path / "far" / "störe" / "runtimes" / "abc"
    shutil.copytree(ROOT / "fsdl_dev", runtime / "fsdl_dev", ignore=shutil.ignore_patterns("__pycache__"))
    job = Job(kind="script", name="look", script="look.py", resources=Resources(gpus=0))
    run = far.launch(root, job, "", runtime=str(runtime), data={"data/big": str(tmp_path / "datasets")})
    assert far.wait(run) == "succeeded", run.worker_log.read_text() + run.log(0).read_text()
    assert run.log(0).read_text() == "True of the snapshot ['a.bin']\nTrue\n"
    assert (run.path / "work" / "data.txt").read_text() == "of the snapshot!" and (
        root / "data.txt"
    ).read_text() == "of the snapshot"
    missing = far.launch(root, job, "", runtime=str(runtime), data={"data/big": "/nowhere"})
    assert far.wait(missing) == "failed" and "is not on this machine" in explain_failure(missing).message


def test_a_run_comes_after_another(far, project):
    root = project()
    (root / "s.py").write_text("print('ran')")
    job = Job(kind="script", name="s", script="s.py", resources=Resources(gpus=0))
    earlier = far.launch(root, job, "", start=False)
    later, never = (far.launch(root, job, "", after=earlier.id) for _ in range(2))
    broken = create_run_dir(far.store, job)
    broken.set_state(broken.writer("worker"), "queued", "x")
    broken.set_state(broken.writer("worker"), "failed", "x")
    refused = far.launch(root, job, "", after=broken.id)
    assert (
        far.wait(refused) == "cancelled"
        and f"{broken.id}, which it was to start after, failed" in refused.last_state()["reason"]
    )
    far.wait(never, ("queued",))
    while "waiting for" not in never.last_state()["reason"]:
        time.sleep(0.05)
    os.kill(never.last_state()["pid"], signal.SIGTERM)
    assert (
        far.wait(never) == "cancelled"
        and never.last_state()["reason"] == "cancelled by SIGTERM while it was queued"
    )
    assert later.state() == "queued" and not later.log(0).exists()
    far.start(earlier, "")
    assert far.wait(earlier) == "succeeded" and far.wait(later) == "succeeded"
    assert "ran" in later.log(0).read_text()
