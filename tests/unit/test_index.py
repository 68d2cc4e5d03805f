"""The index of runs beside damaged run directories, other processes and long questions."""

import json
import shutil
import sqlite3
import threading
from contextlib import closing

import pytest
from click.testing import CliRunner

from fsdl_dev.cli.main import main
from fsdl_dev.core.errors import FsdlError
from fsdl_dev.core.event_kinds import Metric
from fsdl_dev.core.job import Job
from fsdl_dev.core.rundir import RunDir, create_run_dir
from fsdl_dev.core.states import UNREADABLE
from fsdl_dev.records.find import history_checks
from fsdl_dev.records.search.store import RunStore

LIFE = ("queued", "starting", "running", "succeeded")


@pytest.fixture
def store(tmp_path):
    """Three runs that have ended."""
    for number in range(3):
        job = Job("script", "train.py", script="train.py", params={"lr": number / 10})
        run = create_run_dir(tmp_path, job)
        for state in LIFE:
            run.set_state(run.writer("worker"), state, "example")
        run.writer("rank0", rank=0).write(Metric(step=1, values={"acc": number}))
    return tmp_path


def last_run(store) -> RunDir:
    return RunDir(sorted((store / "runs").iterdir())[-1])


def later(run: RunDir, line: str) -> None:
    with open(run.events / "worker.jsonl", "a") as file:
        file.write(f'{{"t": 1799999999.0, "kind": {line}}}\n')


def changed_job(**fields):
    return lambda run: run.job_file.write_text(json.dumps({**run.job().to_dict(), **fields}))


UNREAD = {
    "a list": lambda run: run.job_file.write_text("[]"),
    "cut": lambda run: run.job_file.write_text('{"kind":'),
    "a folder": lambda run: (run.job_file.unlink(), run.job_file.mkdir()),
    "tags": changed_job(tags=[1]),
    "name": changed_job(name=["x"]),
    "script": changed_job(script=["x"], params=3),
    "checkpoint": lambda run: later(
        run, '"checkpoint", "path": 3, "metric": "acc", "value": "x", "best": true'
    ),
    "outputs": lambda run: later(run, '"outputs", "files": 3, "count": 1, "bytes": 1'),
}
READ = {
    "outputs without their number": lambda run: later(run, '"outputs", "files": 3'),
    "state of a newer version": lambda run: later(run, '"state", "state": "paused", "reason": "x"'),
    "kind": lambda run: later(run, '["x"]'),
    "event file": lambda run: (run.events / "rank1.jsonl").mkdir(),
    "huge": changed_job(params={"lr": 2**80, "b": [1, {"c": None}], "half \ud800": "\ud800"}),
    "summary": lambda run: (run.path / "summary.json").write_text(
        json.dumps({"format": 3, "id": run.id, "state": "succeeded", "params": [1]})
    ),
}


@pytest.mark.parametrize("damage", [*UNREAD, *READ])
def test_a_damaged_run_is_one_row_and_stands_in_the_way_of_no_launch(store, damage):
    run, index = last_run(store), RunStore(store)
    {**UNREAD, **READ}[damage](run)
    rows = {row.id: row for row in index.query()}
    assert len(rows) == 3 and [row.state for row in rows.values()].count("succeeded") >= 2
    expected = {"state of a newer version": "paused"}.get(
        damage, UNREADABLE if damage in UNREAD else "succeeded"
    )
    assert rows[run.id].state == expected, rows[run.id]
    if damage in UNREAD:
        assert "cannot be read" in str(index.query()) and not rows[run.id].alive
        assert [row.id for row in index.query("state = unreadable")] == [run.id]
    if expected == "paused":
        assert [row.id for row in index.query("state = paused and state = alive")] == [run.id]
    assert len(index.query()) == index.reindex() == 3
    assert history_checks(Job("script", "train.py", script="train.py"), store) == []


def test_a_run_that_is_repaired_is_read_again(store):
    run, text = last_run(store), last_run(store).job_file.read_text()
    run.job_file.write_text("[]")
    assert RunStore(store).query()[0].state == UNREADABLE
    run.job_file.write_text(text)
    assert RunStore(store).query()[0].state == "succeeded"
    shutil.copytree(run.path, run.path.with_name("a-copy-by-hand"))
    assert len(RunStore(store).query()) == 4 and "by-hand" in str(RunStore(store).query())


def test_questions_beside_reindex_are_whole_and_the_index_stays(store):
    index, short, over = RunStore(store), [], threading.Event()
    index.query()

    def ask():
        while not over.is_set():
            found = RunStore(store).query("lr >= 0", verify=False)
            short.extend([len(found)] if len(found) != 3 else [])

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for thread in asking:
        thread.start()
    try:
        assert [index.reindex() for _ in range(15)] == [3] * 15
    finally:
        over.set()
        for thread in asking:
            thread.join()
    assert not short and not list(store.glob(".runs.sqlite*"))


def test_only_a_damaged_file_is_thrown_away(store):
    index = RunStore(store)
    index.query()
    kept = index.file.stat().st_ino
    assert len(index.query(" or ".join(["lr >= 0"] * 1200))) == 3
    assert index.query(f"owner in ({', '.join(f'ada{i}' for i in range(400))})") == []
    for text in ("(" * 1500 + "lr", "name ~ " + "x" * 60_000, "lr = \ud800", " and ".join(["not"] * 1500)):
        with pytest.raises(FsdlError):
            index.query(text)
    with pytest.raises(FsdlError, match="gives no answer"):
        index._ask(False, lambda connection: connection.execute("SELECT nothing"))
    with pytest.raises(TypeError):
        index._ask(False, lambda connection: None + 1)
    assert index.file.stat().st_ino == kept
    for text in (
        "UPDATE rows SET row = '{'",
        "DELETE FROM rows",
        "DROP TABLE links",
        "UPDATE names SET own = 'gone'",
    ):
        with closing(sqlite3.connect(index.file)) as other:
            other.execute(text)
            other.commit()
        if "names" not in text:
            assert len(index.query("lr >= 0")) == 3, text
    with pytest.raises(FsdlError, match="--reindex"):
        index.query("lr >= 0")
    assert index.reindex() == 3 and len(index.query("lr >= 0")) == 3
    index.file.write_bytes(b"broken" * 1000)
    assert len(index.query("lr >= 0")) == 3


def test_a_run_in_a_state_of_a_newer_version_is_neither_cancelled_nor_removed(store, monkeypatch):
    run = last_run(store)
    later(run, '"state", "state": "paused", "reason": "x"')
    monkeypatch.setenv("FSDL_STORE", str(store))
    for command in (["cancel", run.id], ["rm", "-y", run.id]):  # each advised the other, and cancel waited
        result = CliRunner().invoke(main, command)
        assert "newer version" in result.output, (command, result.output)
    assert run.path.is_dir()
