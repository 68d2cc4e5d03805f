"""A tracker whose server hangs, refuses or dies: training is untouched, and `mirror` sends the rest."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from following import events, until
from test_local import PATIENCE, place  # noqa: F401  a fixture
from tracker_server import TrackerServer

from fsdl_dev.core.errors import FsdlError
from fsdl_dev.core.event_kinds import Checkpoint, Metric, Note, Promotion, State, Tag
from fsdl_dev.core.job import Job, LaunchRecord
from fsdl_dev.core.rundir import create_run_dir, read_json
from fsdl_dev.records.run import Run
from fsdl_dev.share.mirror import mirror

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

STEPS = """
    import sys, time, pathlib, fsdl_dev
    for step in range(20):
        fsdl_dev.log(step=step, loss=step / 8)
    while len(sys.argv) > 1 and not pathlib.Path(sys.argv[1]).exists():
        time.sleep(0.02)
    for step in range(20, 25):
        fsdl_dev.log(step=step, loss=step / 8)
    """
ALL = [(step, step / 8) for step in range(25)]


def feed_is_over(run) -> bool:
    "Whether the process beside the run has left the lock."
    import fcntl

    with open(run.path / "trackers" / "mlflow.lock", "ab") as file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


@pytest.fixture
def mlflow_at(monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with TrackerServer() as server:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
        yield server


def rows_of(server) -> list:
    (run,) = server.runs.values()
    return [(step, value) for step, _, value in run["rows"]]


def feed(run) -> str | None:
    "One session of the feed, in this process; why it failed."
    from fsdl_dev.worker.job.feed import Feed

    one = Feed(run, "mlflow")
    try:
        one.send()
        one.close()
    except Exception as error:  # noqa: BLE001  as the program does
        one.failed(error)
    one._lock.close()
    return one.state.problem


def test_a_server_that_hangs_refuses_or_dies_has_all_rows_in_the_end(tmp_path, mlflow_at):
    run = create_run_dir(tmp_path / "store", Job("script", "job"), LaunchRecord(project="/x/digits"))
    log, habits = run.writer("rank0", 0), iter(("hangs", "refuses", "answers", "refuses", "hangs", "answers"))
    for step, value in ALL:
        log.write(Metric(step=step, values={"loss": value}))
        if step % 5 == 4:
            mlflow_at.habit = next(habits)
            assert bool(feed(run)) == (mlflow_at.habit != "answers")
    mlflow_at.habit = "answers"
    assert [bool(told.get("problem")) for told in events(run, "tracker")] == [True, True, False, True, True]
    assert feed(run) is None and rows_of(mlflow_at) == ALL
    told, again = read_json(run.path / "trackers" / "mlflow.json"), mlflow_at.asked
    assert told["rows"] == 25 and told["link"]["url"].startswith(mlflow_at.url)
    again.clear()
    assert mirror(Run(run), say=None)["mlflow"]["rows"] == 25
    assert rows_of(mlflow_at) == ALL, "nothing is sent twice"
    assert not [told for told in Run(run).view.services.trackers if told.problem], (
        "the card forgets the problem"
    )


def store_of(run) -> Path:
    return run.path.parent.parent


@pytest.fixture
def made_run(tmp_path, monkeypatch):
    "A run that has ended, with a checkpoint and more parameters than MLflow takes at once."
    pytest.importorskip("mlflow")
    for name in ("MLFLOW_TRACKING_URI", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    args = [word for number in range(130) for word in (f"--p{number}", str(number))]
    job = Job("script", "job", args=tuple(args), tags={"task": "digits", "draft": "yes"})
    run = create_run_dir(tmp_path / "store", job, LaunchRecord(project="/x/digits"))
    log = run.writer("rank0", 0)
    for step, value in ALL:
        log.write(Metric(step=step, values={"loss": value}))
    (run.checkpoints / "a.ckpt").write_bytes(b"weights")
    log.write(Checkpoint(path="checkpoints/a.ckpt", step=24, best=True, sha256="a" * 64, bytes=7))
    for state in ("queued", "starting", "running", "succeeded"):
        run.set_state(run.writer("worker"), state, "by hand")
    return run


def test_mlflow_has_what_came_after_the_run(made_run):
    """Killed while it makes its file; 130 parameters; a tag that is changed or removed, a note, a promotion."""
    from mlflow import MlflowClient

    run, file = made_run, store_of(made_run) / "mlflow.db"
    command = [sys.executable, "-P", "-m", "fsdl_dev.worker.job.feed", str(run.path), "mlflow"]
    with subprocess.Popen(command) as process:
        until(lambda: file.with_name("mlflow.db.making").exists() or file.exists(), patience=PATIENCE)
        process.kill()
    assert feed(run) is None and not [*file.parent.glob("*.making*"), *run.path.glob("trackers/*.making")]
    people = run.writer("people")
    people.write(Tag(tags={"task": "letters", "draft": None}, by="Ada"))
    people.write(Note(text="the labels were wrong", by="Ada"))
    told = {
        "name": "digits",
        "status": "production",
        "path": "checkpoints/a.ckpt",
        "who": "Ada",
        "when": "now",
    }
    people.write(Promotion(sha256="a" * 64, **told))
    for _ in range(2):
        assert feed(run) is None
    client = MlflowClient(f"sqlite:///{file}")
    (found,) = client.search_runs([one.experiment_id for one in client.search_experiments()])
    tags, name = found.data.tags, found.info.run_id
    assert len(found.data.params) == 130 and tags["task"] == "letters" and "draft" not in tags
    assert tags["mlflow.note.content"] == "the labels were wrong" and found.info.status == "FINISHED"
    assert [(m.step, m.value) for m in client.get_metric_history(name, "loss")] == ALL
    files = {one.path for one in client.list_artifacts(name, "checkpoints/best")}
    assert files == {"checkpoints/best/a.ckpt", "checkpoints/best/record.json"}
    version = client.get_model_version_by_alias("digits", "production")
    assert version.run_id == name and len(client.search_model_versions("name = 'digits'")) == 1


@pytest.mark.slow
def test_wandb_offline_has_what_came_after_the_run(made_run):
    """Each session has its folder; all are uploaded by one command, and a killed one leaves nothing."""
    from wandb.proto import wandb_internal_pb2 as messages

    from fsdl_dev.worker.trackers import wandb_records

    run, rows, config, files = made_run, 0, set(), []
    mirror(Run(run), "wandb", say=None)
    Run(run).note("the labels were wrong")
    told = mirror(Run(run), say=None)["wandb"]
    assert told["sync"].count("offline-run-") == 2 and mirror(Run(run), say=None)["wandb"] == told
    for path in sorted(run.path.glob("trackers/wandb/offline-run-*/*.wandb")):
        for data, _ in wandb_records(path):
            record = messages.Record()
            record.ParseFromString(data)
            rows += bool(record.history.item)
            config |= {one.key for one in record.run.config.update}
            logged = record.artifact
            files += [(logged.type, *logged.aliases, logged.metadata)] if logged.name else []
    assert rows == 25 and {"p0", "p129", "fsdl"} <= config
    assert {alias for _, *aliases, _ in files for alias in aliases} >= {"best", "last"}
    assert all(kind == "model" and "a" * 64 in metadata for kind, *_, metadata in files)


@pytest.mark.tier("long")
@pytest.mark.slow
def test_a_server_that_dies_in_the_middle_has_all_rows_in_the_end(place, mlflow_at, tmp_path):  # noqa: F811
    run = place.script(STEPS, str(tmp_path / "go"), loggers=("mlflow",))
    until(lambda: mlflow_at.runs and len(rows_of(mlflow_at)) == 20, patience=PATIENCE)
    with pytest.raises(FsdlError, match="Another process sends"):
        mirror(Run(run))
    mlflow_at.habit = "refuses"
    (tmp_path / "go").touch()
    assert place.wait(run) == "succeeded", place.log(run)
    until(lambda: feed_is_over(run), patience=PATIENCE)
    (told,) = [event for event in events(run, "tracker") if event.get("problem")][-1:]
    assert f"fsdl mirror {Run(run).words} --to mlflow" in told["problem"] and len(rows_of(mlflow_at)) == 20
    mlflow_at.habit = "answers"
    mirror(Run(run))
    assert rows_of(mlflow_at) == ALL


@pytest.mark.tier("long")
@pytest.mark.slow
def test_wandb_has_each_row_once_after_its_server_died(place, tmp_path, monkeypatch):  # noqa: F811
    with TrackerServer() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)  # made up
        monkeypatch.setenv("WANDB_MODE", "online")
        monkeypatch.setenv("WANDB_FINISH_TIMEOUT", "3")  # it gives up, well before the worker ends it
        run = place.script(STEPS, str(tmp_path / "go"), loggers=("wandb",))
        until(lambda: server.runs and len(next(iter(server.runs.values()))["rows"]) == 20, patience=PATIENCE)
        server.habit = "refuses"
        (tmp_path / "go").touch()
        assert place.wait(run) == "succeeded", place.log(run)
        lock = run.path / "trackers" / "wandb.lock"
        lock.rename(lock.with_name("mlflow.lock"))
        until(lambda: feed_is_over(run), patience=PATIENCE)
        state = read_json(run.path / "trackers" / "wandb.json")
        assert state["rows"] == 0 and state["parts"], "nothing is confirmed before the end of a session"
        server.habit = "answers"
        monkeypatch.delenv("WANDB_FINISH_TIMEOUT")
        told = mirror(Run(run))["wandb"]
        (found,) = server.runs.values()
        rows = [(row["step"], row["loss"]) for row in found["rows"]]
        assert rows == ALL and [row["_step"] for row in found["rows"]] == list(range(25))
        assert told["rows"] == 25 and told["url"].endswith(run.id)
        assert found["facts"]["fsdl"]["value"]["run"] == run.id


@pytest.mark.slow
def test_wandb_offline_then_a_server_that_hangs_then_one_that_answers(tmp_path, monkeypatch):
    run = create_run_dir(tmp_path / "store", Job("script", "job"), LaunchRecord(project="/x/digits"))
    log = run.writer("rank0", 0)
    for step, value in ALL:
        log.write(Metric(step=step, values={"loss": value}))
    log.write(State(state="succeeded"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    offline = mirror(Run(run), "wandb", say=None)["wandb"]
    assert offline["rows"] == 25 and offline["sync"] == f"wandb sync {offline['path']}"
    with TrackerServer("hangs") as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)  # made up
        monkeypatch.setenv("WANDB_MODE", "online")
        for name in ("INIT", "LOGIN"):
            monkeypatch.setenv(f"WANDB_{name}_TIMEOUT", "3")
        with pytest.raises(FsdlError, match="wandb did not receive everything") as raised:
            mirror(Run(run), say=None)
        assert raised.value.fix == f"fsdl mirror {Run(run).words} --to wandb" and server.asked.is_set()
        assert Run(run).view.services.trackers[-1].problem, "the card says so"
        server.habit = "answers"
        told = mirror(Run(run), say=None)["wandb"]
        (found,) = server.runs.values()
        assert [(row["step"], row["loss"]) for row in found["rows"]] == ALL
        assert told["rows"] == 25 and told["url"].endswith(run.id)


@pytest.mark.tier("long")
@pytest.mark.slow
def test_a_run_without_an_account_can_be_copied_and_uploaded(place, tmp_path):  # noqa: F811
    run = place.script(STEPS, loggers=("wandb", "tensorboard"))
    assert place.wait(run) == "succeeded", place.log(run)
    told = mirror(Run(run)) if feed_ended(place, run) else {}
    folder = Path(told["wandb"]["path"])
    assert list(folder.glob("*.wandb")) and folder.is_relative_to(run.path / "trackers")
    assert told["wandb"]["sync"] in json.dumps([event for event in events(run, "tracker")])
    copied = shutil.copytree(folder, tmp_path / "elsewhere" / folder.name)
    with TrackerServer() as server:
        env = os.environ | {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": "0" * 40, "WANDB_MODE": "online"}
        command = [str(Path(sys.executable).with_name("wandb")), "sync", str(copied)]
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        (found,) = server.runs.values() or [done.stderr]
        assert [(row["step"], row["loss"]) for row in found["rows"]] == ALL
    assert list((run.path / "trackers" / "tensorboard").glob("events.out*"))
    assert [event["step"] for event in events(run, "metric")] == list(range(25)), "not picked up again"


def feed_ended(place, run) -> bool:  # noqa: F811
    "Wait until the worker has let its feeds end."
    from fsdl_dev.worker.observe import worker_of
    from fsdl_dev.worker.processes import is_alive

    who = worker_of(run)
    place.until(lambda: not is_alive(who))
    return True


@pytest.fixture
def sampled_run(made_run):
    "A run that logged two images, a table and a text, of which the first image is no longer kept."
    import numpy
    import pandas

    from fsdl_dev.train.samples import log_sample

    log = made_run.writer("rank0", 0)
    for step in (3, 4):
        event = log_sample(made_run.path, log, "pictures", step, numpy.full((6, 9), step, "uint8"))
        (made_run.path / event["files"][0]["path"]).unlink() if step == 3 else None
    log_sample(made_run.path, log, "errors", 4, pandas.DataFrame({"file": ["a.png"], "loss": [2.5]}))
    log_sample(made_run.path, log, "story", 4, "once upon a time")
    return made_run


def test_tensorboard_and_mlflow_have_the_samples(sampled_run):
    "Each sample once, at its step; one whose file is gone is passed over."
    from mlflow import MlflowClient
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = sampled_run
    for name in ("tensorboard", "mlflow"):
        for _ in range(2):
            assert mirror(Run(run), name, say=None)[name]["rows"] == 25 + 4
    shown = EventAccumulator(str(run.path / "trackers" / "tensorboard")).Reload()
    (picture,) = shown.Images("pictures")
    assert (picture.step, picture.width, picture.height) == (4, 9, 6) and len(shown.Scalars("loss")) == 25
    assert b"once upon a time" in shown.Tensors("story")[0].tensor_proto.string_val[0]
    client = MlflowClient(f"sqlite:///{store_of(run)}/mlflow.db")
    (found,) = client.search_runs([one.experiment_id for one in client.search_experiments()])
    name = found.info.run_id
    for key, suffix in (("pictures", ".png"), ("errors", ".csv"), ("story", ".txt")):
        (step,) = client.list_artifacts(name, f"samples/{key}")
        (file,) = client.list_artifacts(name, step.path)
        assert step.path.endswith("step00000004") and file.path.endswith(suffix)


@pytest.mark.slow
def test_wandb_has_the_samples(sampled_run):
    "Images and tables lie in the folder that is uploaded."
    mirror(Run(sampled_run), "wandb", say=None)
    names = [path.name for path in sampled_run.path.glob("trackers/wandb/offline-run-*/files/media/**/*.*")]
    assert sum(name.startswith("pictures") for name in names) == 1, names
    assert sum(name.endswith(".table.json") for name in names) == 2, names
