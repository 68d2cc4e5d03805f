"""The local target with real processes: what survives, what is ended, and what a run says of itself."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import jsonschema
import nbformat
import pytest
from following import events, states, until
from repository import SUPPORT

from fsdl_dev.core.errors import FsdlError, memory_folders
from fsdl_dev.core.event_kinds import Checkpoint
from fsdl_dev.core.events import read_events
from fsdl_dev.core.job import Job, Resources
from fsdl_dev.core.rundir import RunDir, create_run_dir, read_json, write_json
from fsdl_dev.core.settings import find_project
from fsdl_dev.core.states import FINAL
from fsdl_dev.engines.target import get_target
from fsdl_dev.records.checkpoints import verify_checkpoint
from fsdl_dev.records.facts import event_schema
from fsdl_dev.records.run import Run
from fsdl_dev.records.search.store import RunStore
from fsdl_dev.worker.failures import explain_failure
from fsdl_dev.worker.observe import observe, worker_of
from fsdl_dev.worker.processes import boot_id, identity, is_alive, run_processes, who_asks
from fsdl_dev.worker.slots import slots_table

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
SCHEMA = jsonschema.Draft202012Validator(event_schema(open_ended=False))
PATIENCE = 300  # seconds; a test that needs more has failed


class Place:
    """A project in a folder with spaces and umlauts, a snapshot that is simply a second folder, and the test target."""

    def __init__(self, folder: Path):
        self.live, self.code = folder / "prøject with spaces", folder / "snapshöt 1"
        self.live.mkdir()
        self.code.mkdir()
        self.runs: list[RunDir] = []
        (self.live / "pyproject.toml").write_text("[tool.fsdl_dev]\ngrace_seconds = 20\n")

    def file(self, name: str, text: str) -> None:
        path = self.code / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))

    @property
    def target(self):
        return get_target("test", find_project(self.live))

    def submit(
        self, procs: int = 1, time_limit: str | None = None, code: Path | None = None, **fields
    ) -> RunDir:
        project = find_project(self.live)
        job = Job(name="a test", resources=Resources(procs=procs, gpus=0, time=time_limit), **fields)
        run = create_run_dir(project.store, job)
        write_json(run.snapshot_file, {"digest": "none", "code": str(code or self.code)})
        self.target.submit(run, job, project)
        self.runs.append(run)
        return run

    def script(self, text: str, *args: str, **more) -> RunDir:
        name = f"script{len(self.runs)}.py"
        self.file(name, text)
        return self.submit(kind="script", script=name, args=args, **more)

    def wait(self, run: RunDir, states=FINAL) -> str:
        end = time.monotonic() + PATIENCE
        while (state := self.target.poll(run)) not in states:
            assert time.monotonic() < end and state not in FINAL, (
                f"{state}: {run.last_state()}\n{run.worker_log.read_text()}\n{self.log(run)}"
            )
            time.sleep(0.02)
        for line in read_events(
            run.events
        ):  # each line of a real run fits the schema, whichever program wrote it
            SCHEMA.validate(line)
        return state

    def log(self, run: RunDir, rank: int = 0) -> str:
        return run.log(rank).read_text() if run.log(rank).exists() else ""

    def until(self, true) -> None:
        until(true, patience=PATIENCE, pause=0.02)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("FSDL_SLOTS", "4")
    here = Place(tmp_path)
    yield here
    for run in here.runs:
        if here.target.poll(run) not in FINAL:
            here.target.cancel(run)
            here.wait(run)
        here.until(lambda run=run: not run_processes(run.id))
        who = worker_of(run)
        here.until(lambda who=who: not is_alive(who))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


WAIT = """
import sys, time, pathlib
print("up", flush=True)
while not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.02)
print("done")
"""

# --- detachment ---------------------------------------------------------------------------------------------


def test_a_run_outlives_the_process_that_launched_it(place, tmp_path):
    place.file("wait.py", WAIT)
    launcher = f"""
import sys, time
sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[1])!r}, {str(SUPPORT)!r}]
from pathlib import Path
from test_local import Place
place = Place.__new__(Place)
place.live, place.code, place.runs = Path({str(place.live)!r}), Path({str(place.code)!r}), []
print(place.submit(kind="script", script="wait.py", args=({str(tmp_path / "go")!r},)).path, flush=True)
time.sleep(600)
"""
    kernel = subprocess.Popen(
        [sys.executable, "-c", launcher], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    run = RunDir(Path(kernel.stdout.readline().strip()))
    place.runs.append(run)
    place.wait(run, {"running"})
    os.killpg(kernel.pid, signal.SIGINT)  # Ctrl-C goes to the whole foreground group
    os.killpg(kernel.pid, signal.SIGHUP)
    os.killpg(kernel.pid, signal.SIGKILL)
    kernel.communicate()
    assert place.target.poll(run) == "running"
    (tmp_path / "go").touch()
    assert place.wait(run) == "succeeded"
    assert place.log(run) == "up\ndone\n"
    assert states(run) == ["queued", "starting", "running", "succeeded"]


def test_submit_returns_before_anything_runs(place, tmp_path):
    run = place.script(WAIT, str(tmp_path / "go"))
    assert run.state() in ("queued", "starting", "running")
    assert worker_of(run).pid != os.getpid() and os.getsid(worker_of(run).pid) != os.getsid(0)
    (tmp_path / "go").touch()
    place.wait(run)


# --- the queue ----------------------------------------------------------------------------------------------


def test_runs_queue_in_order_and_show_their_position(place, tmp_path, monkeypatch):
    monkeypatch.setenv("FSDL_SLOTS", "1")
    first = place.script(WAIT, str(tmp_path / "go"))
    place.wait(first, {"running"})
    waiting = []
    for position in (1, 2, 3):
        run = place.script("print('hi')")
        place.until(lambda run=run, position=position: (run.last_state() or {}).get("position") == position)
        waiting.append(run)
    assert waiting[1].last_state()["ahead"] == [first.id, waiting[0].id]
    assert waiting[1].last_state()["reason"].startswith("waiting for 1 of 1 cpu slots, position 2, behind ")
    place.target.cancel(waiting[1])
    assert place.wait(waiting[1]) == "cancelled" and first.state() == "running"
    place.until(lambda: waiting[2].last_state().get("position") == 2)
    (tmp_path / "go").touch()
    assert [place.wait(run) for run in (first, waiting[0], waiting[2])] == ["succeeded"] * 3
    began = [events(run, "placed")[0]["t"] for run in (first, waiting[0], waiting[2])]
    assert began == sorted(began) and slots_table() == []


def test_the_lease_of_a_killed_worker_is_reclaimed(place, tmp_path, monkeypatch):
    monkeypatch.setenv("FSDL_SLOTS", "1")
    holder = place.script(
        "import subprocess, time\nprint(subprocess.Popen(['sleep', '600'], start_new_session=True).pid,"
        " flush=True)\ntime.sleep(600)"
    )
    place.until(lambda: place.log(holder).strip())
    child, worker = int(place.log(holder)), worker_of(holder).pid
    following = place.script("print('mine now')")
    place.until(lambda: following.last_state().get("position") == 1)
    guardians = [pid for pid in children(worker) if not any(pid == p for p in run_processes(holder.id))]
    for pid in [*guardians, worker]:  # nobody is left to clean up
        os.kill(pid, signal.SIGKILL)
    assert place.wait(following) == "succeeded"
    assert not alive(child)
    assert place.wait(holder) == "lost"


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# --- cancel -------------------------------------------------------------------------------------------------


def test_cancel_waits_for_the_checkpoint(place):
    run = place.script(
        """
        import signal, sys, time, pathlib
        def save(*_):
            time.sleep(0.3)
            pathlib.Path(sys.argv[1]).write_text("weights")
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        print("ready", flush=True)
        time.sleep(600)
        """,
        str(place.live / "saved"),
    )
    place.until(lambda: "ready" in place.log(run))
    place.target.cancel(run)
    assert place.wait(run) == "cancelled"
    assert (place.live / "saved").read_text() == "weights"
    assert states(run) == ["queued", "starting", "running", "stopping", "cancelled"]
    assert f"cancelled by {who_asks()}" in run.last_state()["reason"]
    assert read_json(run.result_file)["state"] == "cancelled" and explain_failure(run) is None


def test_cancel_ends_what_ignores_it(place):
    (place.live / "pyproject.toml").write_text("[tool.fsdl_dev]\ngrace_seconds = 1\n")
    run = place.script("""
        import os, signal, subprocess, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        own_session = subprocess.Popen(["sleep", "600"], start_new_session=True)
        no_environment = subprocess.Popen(["env", "-i", "setsid", "sleep", "600"])
        if os.fork() == 0:  # a daemon, by the book
            os.setsid()
            if os.fork(): os._exit(0)
            print(f"daemon {os.getpid()}\\n", end="", flush=True)
            time.sleep(600)
        time.sleep(0.2)
        print(f"pids {os.getpid()} {own_session.pid} {no_environment.pid}\\n", end="", flush=True)
        time.sleep(600)
        """)
    place.until(lambda: place.log(run).count("\n") == 2)
    pids = [int(word) for word in place.log(run).split() if word.isdigit()]
    assert len(pids) == 4 and all(map(alive, pids))
    place.target.cancel(run)
    assert place.wait(run) == "cancelled"
    assert not any(map(alive, pids))


def test_cancel_in_the_instant_of_the_launch_is_heard(place):
    for _ in range(3):
        run = place.script("import time\ntime.sleep(600)")
        place.target.cancel(run)
        assert place.wait(run) == "cancelled", run.last_state()


def test_what_a_finished_job_leaves_running_is_ended(place):
    run = place.script(
        "import subprocess\nprint(subprocess.Popen(['sleep', '600'], start_new_session=True).pid)"
    )
    assert place.wait(run) == "succeeded"
    assert not alive(int(place.log(run)))


def test_a_time_limit_fails_the_run_with_that_reason(place):
    run = place.script("import time\ntime.sleep(600)", time_limit="1s")
    assert place.wait(run) == "failed"
    assert explain_failure(run).type == "TimeLimit" and "--time" in explain_failure(run).command


def test_a_run_directory_that_is_moved_ends_its_run_and_is_not_made_again(place, tmp_path):
    run = place.script("""
        import os, time
        print("up", flush=True)
        while os.path.exists(os.environ["FSDL_RUN_DIR"]): time.sleep(0.02)
        from fsdl_dev.core.events import current_writer
        from fsdl_dev.core.event_kinds import Metric
        try: current_writer().write(Metric(step=1, values={"loss": 1.0}))
        except FileNotFoundError: print("refused", flush=True)
        time.sleep(600)
        """)
    place.until(lambda: "up" in place.log(run))
    place.runs.remove(run)
    elsewhere = RunDir(tmp_path / "elsewhere")
    shown = Run(run)
    assert shown.state == "running"
    run.path.rename(elsewhere.path)
    with pytest.raises(FsdlError, match="was moved or removed"):
        shown.wait(progress=False)
    place.until(lambda: elsewhere.state() in FINAL)
    place.until(lambda: elsewhere.result_file.exists())
    assert not run.path.exists() and "refused" in elsewhere.log(0).read_text()
    assert elsewhere.last_state()["reason"].endswith(f"was moved to {elsewhere.path} while the run went on")
    assert explain_failure(elsewhere).type == "RunMoved" and elsewhere.result_file.exists()
    place.until(lambda: not run_processes(run.id))


def test_a_queued_run_whose_directory_is_moved_says_that(place, tmp_path):
    "One that waits for slots, and one that waits for another run: the whole store is somewhere else then."
    store = find_project(place.live).store
    first = place.script(
        "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.02)",
        str(tmp_path / "go"),
        procs=4,
    )
    place.until(lambda: first.state() == "running")
    waits = [place.script("print(1)", procs=4), place.script("print(1)", after=first.id)]
    place.until(lambda: all("waiting" in (run.last_state() or {}).get("reason", "") for run in waits))
    place.runs.clear()
    store.rename(tmp_path / "elsewhere")
    try:
        moved = [RunDir(tmp_path / "elsewhere" / "runs" / run.id) for run in (first, *waits)]
        place.until(lambda: all(run.state() in FINAL for run in moved))
        for run, when in zip(moved, ("the run went on", "the run was queued", "the run was queued")):
            assert run.state() == "failed" and explain_failure(run).type == "RunMoved"
            assert run.last_state()["reason"].endswith(f"was moved to {run.path} while {when}"), (
                run.last_state()
            )
            place.until(lambda run=run: not run_processes(run.id))
    finally:
        (tmp_path / "go").touch()


# --- lost ---------------------------------------------------------------------------------------------------


def test_killing_the_worker_ends_everything_and_marks_the_run_as_lost(place):
    run = place.script("""
        import json, os, pathlib, subprocess, time
        from fsdl_dev.core.events import current_writer
        from fsdl_dev.core.event_kinds import Checkpoint
        run = pathlib.Path(os.environ["FSDL_RUN_DIR"])
        (run / "checkpoints" / "last.ckpt").write_text("weights")
        current_writer().write(Checkpoint(path="checkpoints/last.ckpt", step=40))
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        print(os.getpid(), child.pid, flush=True)
        time.sleep(600)
        """)
    place.until(lambda: len(place.log(run).split()) == 2)
    pids = [int(word) for word in place.log(run).split()]
    os.kill(worker_of(run).pid, signal.SIGKILL)
    place.until(lambda: run.state() == "lost")  # nobody polls: the guardian does it
    assert (
        run.last_state()["reason"]
        == "the worker was killed; its last checkpoint is checkpoints/last.ckpt (step 40)"
    )
    place.until(lambda: not any(map(alive, pids)))
    assert len([event for event in events(run, "state") if event["state"] == "lost"]) == 1


def test_a_machine_restart_is_told_once(place, tmp_path):
    run = create_run_dir(tmp_path / "store", Job("script", "job"))
    before = {**identity().as_dict(), "boot_id": "an earlier boot"}
    writer = run.writer("worker")
    for state in ("queued", "starting", "running"):
        run.set_state(writer, state, "as it was", **before)
    (run.checkpoints / "a.ckpt").touch()
    run.writer("rank0", 0).write(Checkpoint(path="checkpoints/a.ckpt", step=7))
    run.writer("rank0", 0).write(Checkpoint(path="checkpoints/never-finished.ckpt", step=8))
    look = (
        "import sys; from pathlib import Path; from fsdl_dev.worker.observe import observe; from"
        " fsdl_dev.core.rundir import RunDir; print(observe(RunDir(Path(sys.argv[1]))))"
    )
    watchers = [
        subprocess.Popen([sys.executable, "-c", look, str(run.path)], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    threads = [threading.Thread(target=observe, args=(run,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert [watcher.communicate()[0].strip() for watcher in watchers] == ["lost"] * 4
    for thread in threads:
        thread.join()
    lost = [event for event in events(run, "state") if event["state"] == "lost"]
    assert [event["reason"] for event in lost] == [
        "the machine was restarted; its last checkpoint is checkpoints/a.ckpt (step 7)"
    ]


def test_a_run_of_another_machine_is_left_alone(tmp_path):
    run = create_run_dir(tmp_path / "store", Job("script", "job"))
    writer = run.writer("worker")
    for state in ("queued", "starting", "running"):
        run.set_state(writer, state, "there", pid=1, create_time=1.0, boot_id="other", host="elsewhere")
    assert observe(run) == "running"


def test_an_event_log_cut_in_the_middle_of_a_line(place):
    run = place.script("print('fine')")
    place.wait(run)
    with open(run.events / "worker.jsonl", "ab") as file:
        file.write(b'{"t": 99999999999, "kind": "state", "state": "runn')
    assert place.target.poll(run) == "succeeded" and states(run)[-1] == "succeeded"


# --- what runs ----------------------------------------------------------------------------------------------


def test_a_script_runs_as_if_nothing_were_different(place):
    place.file("tool/helper.py", "WHO = 'the snapshot'\n")
    place.file(
        "tool/train.py",
        """
        import os, sys
        import helper
        print(__name__, sys.argv[1:], helper.WHO, os.getcwd())
        sys.stderr.write("to stderr ü\\n")
        sys.exit(3)
        """,
    )
    (place.live / "data").mkdir()
    run = place.submit(kind="script", script="tool/train.py", args=("--name", "ä b"), cwd="data")
    assert place.wait(run) == "failed" and run.last_state()["exit_code"] == 3
    assert place.log(run) == f"__main__ ['--name', 'ä b'] the snapshot {place.live / 'data'}\nto stderr ü\n"
    failure = explain_failure(run)
    assert (failure.type, failure.exit_code, failure.place.file, failure.place.line) == (
        "SystemExit",
        3,
        "tool/train.py",
        6,
    )


def test_code_comes_from_the_snapshot_and_never_from_the_live_project(place):
    place.file("pkg/__init__.py", "")
    place.file("pkg/core.py", "def where(): return 'snapshot'\ndef gone():\n    import only_live\n")
    (place.live / "pkg").mkdir()
    (place.live / "pkg" / "__init__.py").touch()
    (place.live / "pkg" / "core.py").write_text("def where(): return 'live'")
    (place.live / "only_live.py").touch()
    run = place.submit(kind="function", module="pkg.core", function="where")
    assert place.wait(run) == "succeeded" and read_json(run.result_file)["value"] == "snapshot"
    run = place.submit(kind="function", module="pkg.core", function="gone")
    assert place.wait(run) == "failed" and explain_failure(run).type == "ModuleNotFoundError"


def test_this_project_itself_runs_from_its_snapshot(place):
    import fsdl_dev

    shutil.copytree(
        Path(fsdl_dev.__file__).parent, place.code / "fsdl_dev", ignore=shutil.ignore_patterns("__pycache__")
    )
    run = place.submit(
        kind="cell",
        source="import fsdl_dev.worker.job.rank as r\nprint(fsdl_dev.__file__)\nprint(r.__file__)",
        notebook="nbs/a.ipynb",
        cell_id="x",
    )
    assert place.wait(run) == "succeeded"
    assert all(line.startswith(str(place.code)) for line in place.log(run).splitlines())


def test_a_notebook_comes_back_with_outputs(place):
    new = nbformat.v4
    cells = [
        new.new_markdown_cell("# T"),
        new.new_code_cell("lr = 1.0", metadata={"tags": ["parameters"]}),
        new.new_code_cell("print('lr is', lr)"),
        new.new_code_cell("import pkg.core\npkg.core.half(0)"),
    ]
    (place.code / "nbs").mkdir()
    nbformat.write(new.new_notebook(cells=cells), place.code / "nbs" / "über.ipynb")
    place.file("pkg/__init__.py", "")
    place.file("pkg/core.py", "# %% ../nbs/none.ipynb #aa\ndef half(x):\n    return 1 / x\n")
    run = place.submit(kind="notebook", notebook="nbs/über.ipynb", params={"lr": 0.5})
    assert place.wait(run) == "failed"
    executed = nbformat.read(run.path / "executed.ipynb", as_version=4)
    assert executed.cells[3].outputs[0]["text"] == "lr is 0.5\n" and place.log(run).startswith("lr is 0.5\n")
    failure = explain_failure(run)
    assert (failure.type, failure.place.file, failure.place.line) == (
        "ZeroDivisionError",
        "nbs/none.ipynb",
        2,
    )
    assert (failure.via.file, failure.via.line, failure.via.cell_number) == ("nbs/über.ipynb", 2, 3)
    assert [event["step"] for event in events(run, "progress")] == [1, 2, 3]


def test_cancelling_a_notebook_leaves_what_ran(place):
    new = nbformat.v4
    cells = [
        new.new_code_cell("print('first')"),
        new.new_code_cell("import time; print('second', flush=True); time.sleep(600)"),
    ]
    nbformat.write(new.new_notebook(cells=cells), place.code / "long.ipynb")
    run = place.submit(kind="notebook", notebook="long.ipynb")
    place.until(lambda: "second" in place.log(run))
    place.target.cancel(run)
    assert place.wait(run) == "cancelled"
    assert nbformat.read(run.path / "executed.ipynb", as_version=4).cells[0].outputs[0]["text"] == "first\n"


# --- several processes --------------------------------------------------------------------------------------

GLOO = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(x)
print("sum", x.item(), "of", os.environ["WORLD_SIZE"], os.environ["LOCAL_RANK"])
"""


def test_two_gloo_processes(place):
    run = place.script(GLOO + "dist.destroy_process_group()\n", procs=2)
    assert place.wait(run) == "succeeded"
    assert [place.log(run, rank) for rank in (0, 1)] == ["sum 3.0 of 2 0\n", "sum 3.0 of 2 1\n"]
    placed = events(run, "placed")[0]
    assert placed["procs"] == 2 and placed["slots"] == [0, 1] and placed["device"] == "cpu"
    assert any(event["rss"] > 10_000_000 for event in events(run, "resource"))


def test_the_rank_that_failed_first_is_named_first(place):
    source = GLOO + "if dist.get_rank() == 1:\n    raise ValueError('bad batch')\ndist.all_reduce(x)\n"
    run = place.submit(
        kind="cell",
        source=source,
        notebook="nbs/02_model.ipynb",
        cell_id="3f9a",
        cell_number=5,
        cell_title="train",
        procs=2,
    )
    assert place.wait(run) == "failed"
    failure = explain_failure(run)
    assert (failure.rank, failure.type, failure.message) == (1, "ValueError", "bad batch")
    assert failure.place.launch and failure.place.source == "raise ValueError('bad batch')"
    assert failure.place.line == source.splitlines().index("    raise ValueError('bad batch')") + 2
    assert failure.text().startswith("Rank 1 failed")
    assert run.last_state()["reason"].startswith("Rank 1 failed") and not run_processes(run.id)


def test_a_rank_that_is_killed_is_named_although_its_partner_speaks_first(place):
    run = place.script(
        GLOO + "import signal, time\nif dist.get_rank() == 1:\n    os.kill(os.getpid(),"
        " signal.SIGKILL)\ndist.all_reduce(x)\n",
        procs=2,
    )
    assert place.wait(run) == "failed"
    failure = explain_failure(run)
    assert (failure.rank, failure.signal) == (1, "SIGKILL")


def test_cancel_reaches_every_rank(place):
    (place.live / "pyproject.toml").write_text("[tool.fsdl_dev]\ngrace_seconds = 20\n")
    run = place.script(
        """
        import os, pathlib, signal, sys, time
        def save(*_):
            pathlib.Path(os.environ["FSDL_RUN_DIR"], "saved" + os.environ["RANK"]).touch()
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        print("ready", flush=True)
        time.sleep(600)
        """,
        procs=2,
    )
    place.until(lambda: "ready" in place.log(run, 0) and "ready" in place.log(run, 1))
    place.target.cancel(run)
    assert place.wait(run) == "cancelled"
    assert (run.path / "saved0").exists() and (run.path / "saved1").exists()


# --- trackers -----------------------------------------------------------------------------------------------


def test_a_script_gets_its_curves_from_where_it_writes_them(place):
    run = place.script("""
        import json, sys, wandb
        from torch.utils.tensorboard import SummaryWriter
        board = SummaryWriter("runs/x")
        tracked = wandb.init(project="p", settings=wandb.Settings(silent=True, console="off", x_disable_stats=True))
        for step in range(4):
            board.add_scalar("board/loss", 1 / (step + 1), step)
            tracked.log({"wandb/loss": step / 4})
            with open("history.jsonl", "a") as file:
                file.write(json.dumps({"step": step, "lines/loss": step / 8}) + "\\n")
            print(json.dumps({"step": step, "printed/loss": step / 16}))
        board.close(); tracked.finish()
        """)
    assert place.wait(run) == "succeeded", place.log(run)
    curves: dict = {}
    for event in events(run, "metric"):
        for name, value in event["values"].items():
            curves.setdefault(name, []).append((event["step"], round(value, 4)))
    assert curves == {
        name: [(step, round(value(step), 4)) for step in range(4)]
        for name, value in {
            "board/loss": lambda s: 1 / (s + 1),
            "wandb/loss": lambda s: s / 4,
            "lines/loss": lambda s: s / 8,
            "printed/loss": lambda s: s / 16,
        }.items()
    }
    sync = next(event["sync"] for event in events(run, "tracker") if event["name"] == "wandb")
    folder = sync.removeprefix("wandb sync ").strip("'")
    assert Path(folder).is_dir() and Path(folder).name.startswith("offline-run-")
    assert any(sync in event["text"] for event in events(run, "note"))
    assert set(read_json(run.result_file)["metrics"]) == set(curves)


TRACKED = """
    import json, pathlib, sys
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter
    far = pathlib.Path(sys.argv[1])
    metric = far / "mlruns" / "0" / "abc" / "metrics" / "val" / "mlflow"
    metric.parent.mkdir(parents=True)
    (far / "mlruns" / "0" / "abc" / "meta.yaml").write_text("")
    (far / "checkpoint-3").mkdir()
    board = EventFileWriter(str(far / "some" / "where"))
    for step in range(3):
        board.add_event(Event(step=step, summary=Summary(value=[Summary.Value(tag="board", simple_value=step)])))
        with open(far / "history.csv", "a") as file:
            file.write("step,table\\n" * (not step) + f"{step},{step}\\n")
        with open(metric, "a") as file:
            file.write(f"1700000000000 {step} {step}\\n")
        print({"printed": f"{step}.0", "epoch": 0.5, "step": step})
    board.close()
    (far / "checkpoint-3" / "trainer_state.json").write_text(
        json.dumps({"log_history": [{"step": step, "epoch": 0.5, "state": float(step)} for step in range(3)]})
    )
    (far / "predictions.csv").write_text("id,label\\n1,2\\n")
"""


def curves(run: RunDir) -> dict:
    found: dict = {}
    for event in events(run, "metric"):
        for name, value in event["values"].items():
            found.setdefault(name, []).append((event["step"], value))
    return found


@pytest.mark.parametrize("wanted", [None, "csv", "none"])
def test_metrics_are_found_in_any_folder(place, tmp_path, monkeypatch, wanted):
    if wanted:
        monkeypatch.setenv("FSDL_PICK_UP", wanted)
    (tmp_path / "far").mkdir()
    run = place.script(TRACKED, str(tmp_path / "far"))
    assert place.wait(run) == "succeeded", place.log(run)
    names = {None: ("board", "table", "val/mlflow", "printed", "state"), "csv": ("table",)}.get(wanted, ())
    assert curves(run) == {name: [(step, float(step)) for step in range(3)] for name in names}
    trackers = [event["name"] for event in events(run, "tracker")]
    kinds = {None: ["csv", "mlflow", "tensorboard", "trainer_state"], "csv": ["csv"]}.get(wanted, [])
    assert sorted(trackers) == kinds


def test_a_notebook_s_metric_files_are_found_by_what_its_kernel_opens(place, tmp_path):
    "Closed at once, and in a folder that nothing else names."
    text = f"""
file = open({str(tmp_path / "far.csv")!r}, "w")
print("step,loss", *(f"{{n}},{{n}}" for n in range(3)), sep="\\n", file=file)
file.close()"""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text)])
    nbformat.write(book, place.code / "study.ipynb")
    run = place.submit(kind="notebook", notebook="study.ipynb")
    assert place.wait(run) == "succeeded", place.log(run)
    assert curves(run) == {"loss": [(step, float(step)) for step in range(3)]}


@pytest.mark.slow
def test_each_run_takes_its_own_metrics_from_a_shared_mlflow_store(place, tmp_path):
    pytest.importorskip("mlflow")
    text = """
        import mlflow, pathlib, sys, time
        mlflow.set_tracking_uri("sqlite:///" + sys.argv[1])
        for step in range(3):
            mlflow.log_metric("val", step * int(sys.argv[2]), step=step)
        pathlib.Path(sys.argv[1] + sys.argv[2]).touch()
        while not pathlib.Path(sys.argv[1] + sys.argv[3]).exists():
            time.sleep(0.02)
        """
    store, runs = str(tmp_path / "store.db"), []
    for own, other in ((1, 10), (10, 1)):  # each ends when both have logged
        runs.append(place.script(text, store, str(own), str(other)))
        place.until(lambda own=own: Path(f"{store}{own}").exists())
    for run, factor in zip(runs, (1, 10), strict=True):
        assert place.wait(run) == "succeeded", place.log(run)
        assert curves(run) == {"val": [(step, step * factor) for step in range(3)]}


# --- ends without an exception ------------------------------------------------------------------------------------


def test_a_checkpoint_that_was_saved_a_moment_before_the_kill(place):
    "The digest of a file is made in the background: its event is missing, and its weights are not lost."
    run = place.script("""
        import os, signal, zipfile
        from fsdl_dev.core.events import current_writer
        from fsdl_dev.core.event_kinds import Checkpoint
        folder = os.environ["FSDL_RUN_DIR"] + "/checkpoints/"
        def save(name, text):
            with zipfile.ZipFile(folder + name, "w") as file: file.writestr("step", text)
            os.link(folder + name, folder + "last~")
            os.replace(folder + "last~", folder + "last.ckpt")
        save("epoch01-step6.ckpt", "6")
        for name, best in (("epoch01-step6.ckpt", True), ("last.ckpt", False)):
            said = dict(step=6, metric="val_loss", mode="min", value=0.5, best=best, sha256="6")
            current_writer().write(Checkpoint(path=f"checkpoints/{name}", **said))
        save("epoch02-step9.ckpt", "9")
        os.remove(folder + "epoch01-step6.ckpt")
        os.kill(os.getpid(), signal.SIGKILL)
        """)
    assert place.wait(run) == "failed"
    found = Run(run)
    assert (found.best.name, found.last.step) == ("epoch02-step9.ckpt", 9)
    for checkpoint in (found.best, found.last):
        verify_checkpoint(checkpoint)


@pytest.mark.parametrize(
    ("code", "said", "status"),
    [
        ("import os; os._exit(7)", "the process exited with status 7", 7),
        ("import ctypes\nctypes.string_at(0)", "Segmentation fault", -signal.SIGSEGV),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "ended by SIGKILL", -signal.SIGKILL),
    ],
)
def test_a_process_that_ends_without_a_word(place, code, said, status):
    run = place.script(code)
    assert place.wait(run) == "failed"
    failure = explain_failure(run)
    assert said in failure.message and failure.exit_code == status and failure.rank == 0
    print(failure.text())


def test_out_of_memory_says_how_much(place):
    run = place.script("import torch\ntorch.empty(10**15)")
    assert place.wait(run) == "failed"
    failure = explain_failure(run)
    assert failure.oom["asked"] == 4 * 10**15 and failure.place.line == 2
    assert "4000 TB asked" in failure.text()
    assert "halve the batch size" in failure.text()


def test_a_missing_snapshot_is_the_runs_failure(place, tmp_path):
    run = place.submit(kind="script", script="nothing.py", code=tmp_path / "gone")
    assert place.wait(run) == "failed"
    assert "nothing.py" in explain_failure(run).text()


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "small disk"
    disk.mkdir()
    if (
        shutil.which("mount") is None
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True
        ).returncode
    ):
        pytest.skip("DISK FULL WAS NOT TRIED: mounting a small tmpfs needs root")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.parametrize("catches", [False, True])
def test_a_full_disk_is_reported(small_disk, place, monkeypatch, catches):
    monkeypatch.setenv("FSDL_STORE", str(small_disk / "store"))
    fill = (
        "import os\nwith open(os.environ['FSDL_RUN_DIR'] + '/big', 'wb', buffering=0) as file:\n    for _ in"
        " range(1000): file.write(bytes(65536))\n"
    )
    if catches:  # the log itself is what fills it
        fill = "while True: print('x' * 10000)\n"
    run = place.script(fill)
    assert place.wait(run) == "failed"
    failure = explain_failure(run)
    assert "No space left on device" in failure.message and "df -h" in failure.command
    assert json.loads(run.result_file.read_text())["state"] == "failed"
    assert boot_id() == run.last_state()["boot_id"]


def test_a_run_that_a_full_disk_ends_without_a_word_says_so(small_disk, place, monkeypatch):
    """Not even the reserve is left: neither the log nor the failure event can be written."""
    monkeypatch.setenv("FSDL_STORE", str(small_disk / "store"))
    run = place.script("""
        import os, pathlib
        folder = pathlib.Path(os.environ["FSDL_RUN_DIR"])
        (folder / ".reserve").unlink()
        try:
            with open(folder.parent.parent / "big", "wb", buffering=0) as file:
                while True: file.write(bytes(4096))
        except OSError:
            os._exit(1)
    """)
    until(lambda: place.target.poll(run) in FINAL)
    (row,) = RunStore(small_disk / "store").query()
    assert row.state in FINAL and ("disk" in row.reason or "df -h" in row.reason), row
    monkeypatch.setenv("FSDL_STORE", str(small_disk / "full"))
    (small_disk / "full").mkdir()
    with pytest.raises(FsdlError, match="No space left"):
        create_run_dir(small_disk / "full", Job("script", "x" * 5000))
    assert not list((small_disk / "full").glob("runs/*")), "a directory without a job is no run"


# --- the whole way ------------------------------------------------------------------------------------------


def test_an_error_in_exported_code_lands_on_its_cell(place, make_project):
    from fsdl_dev.launcher.submit import submit

    cells = [
        "# Model\n\n> One function.",
        "#| default_exp model",
        "## Rates",
        "#| export\n\nimport math",
        "#| export\ndef rate(step):\n    # a comment\n    return 1 / step",
        "assert rate(1) == 1",
    ]
    project = find_project(make_project(notebooks={"01 modèle.ipynb": cells}))
    source = "value = 3\nprint(rate(value))\nrate(step)"
    job = Job(
        kind="cell",
        name="m",
        source=source,
        notebook="nbs/01 modèle.ipynb",
        cell_id="launch",
        cell_number=9,
        cell_title="try it",
        module="smallproj.model",
        cwd="nbs",
        params={"step": 0},
        resources=Resources(gpus=0),
    )
    run = submit(job, project, "test", no_test=True)
    place.runs.append(run)
    assert place.wait(run) == "failed"
    failure = explain_failure(run)
    assert (
        str(failure.place) == "nbs/01 modèle.ipynb, cell 3 “rate”, line 4"
        and failure.place.source == "return 1 / step"
    )
    assert (
        str(failure.via) == "nbs/01 modèle.ipynb, launch cell 9 “try it”, line 4"
        and failure.via.source == "rate(step)"
    )
    assert place.log(run).startswith("0.33")
    print(failure.text())


def test_the_files_of_a_run_are_its_owners(place):
    """Whatever the umask is; what the job writes elsewhere has the job's umask."""
    before = os.umask(0)
    try:
        run = place.script("open('made', 'w').close()")
        assert place.wait(run) == "succeeded"
    finally:
        os.umask(before)
    open_to_others = {
        str(p): oct(p.stat().st_mode) for p in [run.path, *run.path.rglob("*")] if p.stat().st_mode & 0o077
    }
    assert not open_to_others and (place.live / "made").stat().st_mode & 0o777 == 0o666


@pytest.fixture
def memory_group():
    "A control group that allows 300 MiB, below this process's own group."
    folders = memory_folders()
    parent = next((folder for folder, _ in folders if os.access(folder, os.W_OK)), None)
    if parent is None:
        pytest.skip("no control group can be made here")
    group = parent / f"fsdl-test-{os.getpid()}"
    try:
        group.mkdir()
        limit = next(
            group / name for name in ("memory.max", "memory.limit_in_bytes") if (group / name).exists()
        )
        limit.write_text(str(300 << 20))
    except (OSError, StopIteration):
        if group.exists():
            group.rmdir()
        pytest.skip("the control group does not limit memory")
    yield group
    until(lambda: not (group / "cgroup.procs").read_text().strip())
    group.rmdir()


def test_the_limit_of_a_control_group_is_named(place, memory_group):
    """A process that the kernel kills for the limit of a group says whose limit it is and how much, not the memory
    of the machine.
    """
    run = place.script(
        f"""
        import os
        from pathlib import Path
        Path({str(memory_group)!r}, "cgroup.procs").write_text(str(os.getppid()))  # the worker
        Path({str(memory_group)!r}, "cgroup.procs").write_text(str(os.getpid()))
        keep = bytearray(b"x") * (500 << 20)
        """
    )
    assert place.wait(run) == "failed"
    failure = explain_failure(run)
    assert f"{memory_group.name} allows: 300 MiB" in failure.message and failure.oom["total"] == 300 << 20
