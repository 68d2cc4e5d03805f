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
