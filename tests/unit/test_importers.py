"""Importing old runs: processes that are killed or run at once, broken files, and what an imported run refuses."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

import fsdl_dev
from fsdl_dev.cli.main import main
from fsdl_dev.core.errors import FsdlError
from fsdl_dev.core.rundir import list_run_ids
from fsdl_dev.importers.write import import_runs
from fsdl_dev.records.search.store import RunStore

COMMAND = "import sys; from fsdl_dev.cli.main import main; sys.argv[0] = 'fsdl'; main()"


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'old'\n")
    monkeypatch.delenv("FSDL_STORE", raising=False)  # a store in the project, as most people have it
    monkeypatch.chdir(tmp_path)
    return tmp_path


def table(path: Path, runs: int, steps: int = 3) -> Path:
    rows = [f"run-{run},{step},{1 / (step + 1)}" for run in range(runs) for step in range(steps)]
    path.write_text("\n".join(["run,step,loss", *rows, ""]))
    return path


def hidden(project: Path) -> list[str]:
    return [name for name in os.listdir(project / ".fsdl" / "runs") if name.startswith(".")]


def test_a_killed_import_leaves_no_half_run_and_the_next_goes_on(project):
    """Killed at a moment when some runs are there and others are not."""
    table(project / "old.csv", 300)
    words = [sys.executable, "-c", COMMAND, "import", "csv", "old.csv"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and len(list_run_ids(project / ".fsdl")) < 20:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    store = project / ".fsdl"
    before = list_run_ids(store)
    assert 20 <= len(before) <= 300
    for run_id in before:  # each one that has its name is whole
        kept = json.loads((store / "runs" / run_id / "imported.json").read_text())
        lines = (store / "runs" / run_id / "events" / "worker.jsonl").read_text().splitlines()
        assert kept["tracker"] == "csv" and json.loads(lines[-1])["state"] == "ended"
    again = import_runs("csv", "old.csv", say=None)
    assert len(again.of("known")) == len(before) and len(again.of("new")) == 300 - len(before)
    assert not hidden(project) and len(RunStore(store).query("imported = csv", verify=False)) == 300


def test_two_imports_at_once_make_each_run_once(project):
    table(project / "old.csv", 40)
    words = [sys.executable, "-c", COMMAND, "import", "csv", "old.csv", "--json"]
    both = [
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for _ in range(2)
    ]
    made = [json.loads(process.communicate()[0])["runs"] for process in both]
    assert sorted(run["what"] for some in made for run in some) == ["known"] * 40 + ["new"] * 40
    assert len(list_run_ids(project / ".fsdl")) == 40


def test_a_broken_file_is_named_and_the_others_are_imported(project):
    (project / "some").mkdir()
    table(project / "some" / "good.csv", 2)
    (project / "some" / "empty.csv").write_text("")
    found = CliRunner().invoke(main, ["import", "csv", "some"])
    assert found.exit_code == 1 and "2 imported, 1 could not be imported" in found.output
    assert "empty.csv cannot be read" in found.output


def test_a_smaller_copy_takes_nothing_back(project):
    (project / "a").mkdir()
    long = table(project / "a" / "old.csv", 1, steps=9)
    import_runs("csv", long, say=None)
    table(long, 1, steps=4)
    assert [run.what for run in import_runs("csv", long, say=None).runs] == ["known"]
    (row,) = RunStore(project / ".fsdl").query(verify=False)
    assert row.metrics["loss"] == pytest.approx(1 / 9)


def test_an_imported_run_is_refused_where_evidence_is_needed(project):
    table(project / "old.csv", 1)
    import_runs("csv", "old.csv", say=None)
    for action in (fsdl_dev.reproduce, lambda run: fsdl_dev.promote(run, "digits")):
        with pytest.raises(FsdlError, match="imported") as error:
            action("run-0")
        assert error.value.exit_code == 3 and error.value.fix
    shown = json.loads(CliRunner().invoke(main, ["show", "run-0", "--json"]).stdout)
    assert shown["imported"]["tracker"] == "csv" and shown["cost"] is None and shown["seconds"] is None
    assert CliRunner().invoke(main, ["costs"]).output.startswith("No run fits")


def test_a_store_of_a_newer_mlflow_and_one_that_is_none(project):
    with closing(sqlite3.connect("mlflow.db")) as store:
        store.executescript(
            "CREATE TABLE runs (run_uuid); CREATE TABLE experiments (experiment_id);"
            "CREATE TABLE alembic_version (version_num); INSERT INTO alembic_version VALUES ('f00dfeed0001');"
        )
    with pytest.raises(FsdlError, match="f00dfeed0001"):
        import_runs("mlflow", "mlflow.db", say=None)
    shutil.copy("pyproject.toml", "none.db")
    with pytest.raises(FsdlError, match="no runs of mlflow"):
        import_runs("mlflow", "none.db", say=None)


def test_runs_of_all_projects_with_the_project_of_each(project, monkeypatch):
    for name in ("digits", "flowers"):
        folder = project / name
        folder.mkdir()
        (folder / "pyproject.toml").write_text(f"[project]\nname = '{name}'\n")
        table(folder / f"{name}.csv", 1)
        import_runs("csv", folder / f"{name}.csv", folder=folder, say=None)
    monkeypatch.chdir(project / "digits")
    assert len(fsdl_dev.runs()) == 1
    rows = fsdl_dev.runs(all_projects=True)
    assert {row.project for row in rows} == {"digits", "flowers"} and "project" in str(rows).splitlines()[0]
    found = CliRunner().invoke(main, ["runs", "project = flowers", "--all-projects", "--json"])
    assert [row["project"] for row in json.loads(found.stdout)] == ["flowers"]


def invoked(*words: str) -> str:
    """What a command prints."""
    found = CliRunner().invoke(main, words)
    assert found.exit_code == 0, found.output
    return found.output


@pytest.fixture
def two_rows(project) -> Path:
    """Two imported runs: of one the moment, the time and the end are known, of the other nothing is."""
    rows = ["name,lr,val_accuracy,status,created,runtime", "good,0.1,0.9,finished,2024-03-01T10:00:00,1200"]
    (project / "old.csv").write_text("\n".join([*rows, "bare,0.5,0.5,,,", "bad,0.7,0.1,crashed,,", ""]))
    import_runs("csv", "old.csv", say=None)
    return project


def test_what_is_not_known_of_an_imported_run_is_stated_nowhere(two_rows):
    assert invoked("queue", "bare") == "bare does not wait: it was imported, and is ended\n"
    assert json.loads(invoked("queue", "bare", "--json"))["target"] is None
    card = invoked("show", "bare")
    assert "the table does not say how a run ended" in card and "nan" not in card
    bare, good = (fsdl_dev.load_run(name) for name in ("bare", "good"))
    assert (bare.seconds, bare.cost["seconds"], bare.cost["slots"]) == (None, None, None)
    assert (good.seconds, good.cost["slot_hours"]) == (1200.0, None)
    lines = {line.split()[0]: line for line in invoked("runs").splitlines()}
    assert " ago" in lines["good"] and "20 min" in lines["good"] and " ago" not in lines["bare"]
    difference = invoked("diff", "bare", "good")
    assert "0.0 s" not in difference and difference.count("imported (csv), without its code") == 2
    assert "0.0 s" not in invoked("compare", "bare", "good")
    assert invoked("lineage", "bare").endswith("and made nothing that is recorded\n")
    said = CliRunner().invoke(main, ["logs", "bare"])
    assert said.stdout == "" and "its tracker kept no output" in said.stderr
    shell = CliRunner().invoke(main, ["shell", "bare", "--command", "true"])
    assert shell.exit_code == 3 and "gone" not in shell.output and "imported" in shell.output


def test_the_pages_of_an_imported_run_offer_no_repetition_and_name_no_cause(two_rows):
    invoked("share", "bare")
    page = (two_rows / "bare.html").read_text()
    assert "it cannot be repeated from here" in page and "fsdl reproduce" not in page
    assert "no earlier run of the same job" in page, "which job a table's run was is not known"
    assert "· ·" not in page and "0.0 s" not in page and str(two_rows) not in page
    invoked("board", "board")
    board = (two_rows / "board" / "index.html").read_text()
    assert "the tracker does not say why" in board and "an error of the code" not in board
    assert (
        board.count("2024-03-01 10:00") == 1 and f">{time.strftime('%Y-%m-%d', time.gmtime())} " not in board
    )


def test_a_gap_in_the_steps_is_filled_by_the_epoch_else_by_the_row(project):
    """And NaN is a value where it is written, a gap where its cell is empty."""
    rows = ["step,epoch,loss,acc", "10,0,3.0,", ",1,nan,0.5", ",,1.0,0.6", "40,3,,0.7"]
    (project / "gaps.csv").write_text("\n".join([*rows, ""]))
    import_runs("csv", "gaps.csv", say=None)
    log = fsdl_dev.load_run("gaps").path / "events" / "worker.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    points = [(one["step"], one.get("epoch"), one["values"]) for one in lines if one["kind"] == "metric"]
    assert points == [
        (10, 0.0, {"loss": 3.0}),
        (1, 1.0, {"loss": "NaN", "acc": 0.5}),
        (2, None, {"loss": 1.0, "acc": 0.6}),
        (40, 3.0, {"acc": 0.7}),
    ]
