"""A clock that is set while a run goes on, or that another machine has: order, durations and what is kept."""

import os
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from fsdl_dev.core.event_kinds import Checkpoint, Failure, Progress, State
from fsdl_dev.core.events import EventTail, boot_id, last_moment
from fsdl_dev.core.files import file_sha256
from fsdl_dev.core.fold.view import RunView
from fsdl_dev.core.job import Job
from fsdl_dev.core.manifest import MANIFEST, Retention, make_newest, newest_checkpoint, tidy
from fsdl_dev.core.rundir import Placement, RunDir, create_run_dir, list_run_ids
from fsdl_dev.engines.remote.engine import Seen, read_record, write_record
from fsdl_dev.engines.remote.follow import Followed, Reconciler
from fsdl_dev.snapshot.blobs import sweep_temporary
from fsdl_dev.worker.inside import load_inside
from fsdl_dev.worker.job.saved import announce_unheard
from fsdl_dev.worker.life import Life
from fsdl_dev.worker.processes import identity
from fsdl_dev.worker.restart import Attempts, own_checkpoint

JUMPS = pytest.mark.parametrize("seconds", [2 * 86400.0, -7200.0])
real_time = time.time


@pytest.fixture
def run(tmp_path) -> RunDir:
    return create_run_dir(tmp_path, Job("script", "job"))


def set_clock(patch: pytest.MonkeyPatch, seconds: float) -> None:
    "Set this process's wall clock; no other clock changes."
    patch.setattr(time, "time", lambda: real_time() + seconds)


def started(run: RunDir, ahead: float = 0.0, boot: str | None = None) -> None:
    "A run that goes on: of this machine, or of another one whose clock is ahead by so many seconds."
    run.writer("launcher").write(State(state="queued", reason="handed", launcher=identity().as_dict()))
    here = boot is None
    moment = time.time() + ahead
    dated = {} if here else {"t": moment, "clock": [boot, moment - 5.0]}
    for state in ("queued", "starting", "running"):
        run.writer("worker").write(State(state=state, reason="", **identity().as_dict(), **dated))
    for step in (1, 2, 3):
        dated = {} if here else {"t": moment + step}
        run.writer("rank0", 0).write(Progress(step=step, total=100, stage="train", rate=1.0, **dated))


def view_of(run: RunDir) -> RunView:
    return RunView().update(EventTail(run.events).poll())


@JUMPS
def test_a_live_run_takes_as_long_as_it_takes(run, monkeypatch, seconds):
    started(run)
    set_clock(monkeypatch, seconds)
    assert 0.0 <= view_of(run).life.elapsed() < 60.0
    # a process that begins after the jump writes by the clock of the others
    late = run.writer("rank1", 1).write(Progress(step=4))["t"]
    assert abs(late - run.last_state()["t"]) < 60.0
    assert run.writer("observer").write(State(state="lost", reason=""))["t"] > late
    assert run.state() == "lost" == view_of(run).state


@pytest.mark.parametrize("ahead", [2 * 86400.0, -7200.0, -2 * 86400.0])
def test_a_machine_with_another_clock(run, ahead):
    started(run, ahead, boot="of another machine")
    view = view_of(run)
    assert view.state == "running" and view.life.elapsed() < 60.0 and view.standstill() is None
    newest = last_moment(run.events)
    run.writer("observer").write(State(state="lost", reason="its worker is gone", ended=newest))
    assert run.state() == "lost" == view_of(run).state
    assert view_of(run).life.elapsed() == pytest.approx(3.0, abs=0.1)


def test_a_run_that_the_engine_put_back_starts_again_by_a_clock_behind_ours(run):
    started(run, -2 * 86400.0, boot="of another machine")
    follower = Reconciler.__new__(Reconciler)
    now = run.last_state()
    follower._waits(Followed(run), Seen("queued", "a node failed"), now, now)
    assert run.state() == "queued" == view_of(run).state
    run.writer("worker").write(State(state="starting", reason="", t=now["t"] + 60, **identity().as_dict()))
    assert run.state() == "starting" == view_of(run).state


def test_a_run_is_gone_for_as_long_as_it_is(run, monkeypatch):
    write_record(run, read_record(run))
    assert Reconciler.gone(run, read_record(run)) == 0.0
    for seconds in (2 * 86400.0, -7200.0):
        set_clock(monkeypatch, seconds)
        assert 0.0 <= Reconciler.gone(run, read_record(run)) < 60.0
    record = read_record(run)
    boot, moment = record.gone_clock
    assert boot == boot_id()
    write_record(run, replace(record, gone_clock=(boot, moment - 100.0)))
    assert Reconciler.gone(run, read_record(run)) >= 100.0


def whole_file(path: Path, moment: float) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("data", path.name)
    os.utime(path, (moment, moment))
    return path


@JUMPS
def test_the_newest_checkpoint_after_the_clock_was_set(run, seconds):
    now, writer = time.time(), run.writer("rank0", 0)
    for step, moment in ((10, now - 1), (20, now + seconds), (30, now + seconds + 1)):
        path = whole_file(run.checkpoints / f"step{step}.ckpt", moment)
        about = {
            "bytes": path.stat().st_size,
            "sha256": file_sha256(path),
            "best": step == 30,
            "metric": "loss",
        }
        writer.write(Checkpoint(path=f"checkpoints/{path.name}", step=step, mode="min", **about))
    assert own_checkpoint(run) == ((run.checkpoints / "step30.ckpt").absolute(), 30)
    announce_unheard(run, run.writer("worker"))  # nothing is new: the best one stays it
    assert [event.step for event in view_of(run).checkpoints.events if event.best] == [30]
    assert len(EventTail(run.events, kinds=("checkpoint",)).poll()) == 3


def test_what_is_removed_after_the_clock_was_set_back(tmp_path):
    for step, moment in ((10, 0.0), (20, 1.0), (30, -7200.0)):
        folder = tmp_path / f"step{step}"
        folder.mkdir()
        (folder / MANIFEST).write_text(f'{{"step": {step}, "files": {{}}}}')
        os.utime(folder / MANIFEST, (time.time() + moment,) * 2)
        make_newest(folder)
    assert newest_checkpoint(tmp_path).name == "step30"
    assert tidy(tmp_path, Retention(last=2, best=0)) == ["step10"]


def test_the_last_run_is_the_one_that_was_launched_last(tmp_path):
    (tmp_path / "runs").mkdir()
    earlier = create_run_dir(tmp_path, Job("script", "job"), run_id="20991231-235959999-brave-otter")
    create_run_dir(tmp_path, Job("script", "job"), run_id="zzz-a-name")
    made = [create_run_dir(tmp_path, Job("script", "job")).id for _ in range(3)]
    assert [name for name in list_run_ids(tmp_path) if name[0] == "2"] == [earlier.id, *made]
    elsewhere = create_run_dir(tmp_path / "another store", Job("script", "job"))
    assert elsewhere.id < earlier.id, "a store of the future moved the names of another store"


@JUMPS
def test_the_failures_of_an_attempt(run, monkeypatch, seconds):
    run.writer("rank0", 0).write(Failure(type="OSError", message="the first attempt"))
    life = Life(run, Job("script", "train.py", script="train.py"), Placement(), load_inside(Placement()))
    attempts = Attempts(life, run.writer("agent"), 3)
    set_clock(monkeypatch, seconds)
    assert attempts.said() == []
    run.writer("rank1", 1).write(Failure(type="OSError", message="this one", t=time.time()))
    assert [event.message for event in attempts.said()] == ["this one"]


def test_a_clock_set_forward_removes_nothing_that_is_being_written(tmp_path):
    folder = tmp_path / "tmp"
    folder.mkdir()
    lives, gone = folder / f".blob.{os.getpid()}.0123abcd", folder / f".blob.{2**22 + 1}.0123abcd"
    for path in (lives, gone):
        path.write_text("half")
        os.utime(path, (time.time() - 2 * 86400,) * 2)
    assert sweep_temporary(tmp_path) == 1 and lives.exists()
