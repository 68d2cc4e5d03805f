"""What other programs read of a run: run directories of version 0.1 open, and the schema loses nothing."""

import json
import shutil
from copy import deepcopy
from pathlib import Path

import jsonschema
import pytest
from repository import SUPPORT

from fsdl_dev.core.events import plain
from fsdl_dev.core.fold.view import kept_view
from fsdl_dev.core.rundir import RunDir, run_words
from fsdl_dev.records.facts import facts_schema
from fsdl_dev.records.lineage import read_summary
from fsdl_dev.records.run import Run
from fsdl_dev.records.search.store import RunStore

# a store made by version 0.1: a run that succeeded and one that failed, and what `--json` said of them
EARLIER = SUPPORT / "data" / "version_0_1"
RUNS = [path.name for path in sorted((EARLIER / "runs").iterdir())]
PUBLISHED = json.loads((SUPPORT / "data" / "runs.schema.json").read_text(encoding="utf-8"))
SCHEMA = facts_schema()


@pytest.fixture
def store(tmp_path) -> Path:
    shutil.copytree(EARLIER / "runs", tmp_path / "runs")
    return tmp_path


@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_an_earlier_version_says_what_it_said(name, store):
    run, said = Run(RunDir(store / "runs" / name)), EARLIER / f"show_{run_words(name)}.json"
    before, now = json.loads(said.read_text(encoding="utf-8")), plain(run.facts.to_dict())
    assert not before.keys() - now.keys()
    differing = {key for key in before if now[key] != before[key]}
    assert differing <= {"path", "failure"}, {key: (before[key], now[key]) for key in differing}
    assert (now["failure"] or "").partition("fix:")[0] == (before["failure"] or "").partition("fix:")[0]
    jsonschema.validate(now, SCHEMA)
    assert run.status_line().startswith(run.words) and len(run.metrics) == (5 if now["metrics"] else 0)


@pytest.mark.parametrize("kept", [True, False])
def test_its_row_is_the_same_with_and_without_its_summary(kept, store):
    for name in RUNS:
        run = RunDir(store / "runs" / name)
        assert kept_view(run) is None, "the view that version 0.1 kept is of another form"
        assert read_summary(run)
        if not kept:
            (run.path / "summary.json").unlink()
    rows = plain(RunStore(store).query(verify=False).to_dicts())
    earlier = json.loads((EARLIER / "runs.json").read_text(encoding="utf-8"))
    assert [{key: row[key] for key in before} for row, before in zip(rows, earlier, strict=True)] == earlier
    for row in rows:
        jsonschema.validate(row, {**SCHEMA, "$ref": "#/$defs/RunRow"})


def lost(before: dict, now: dict) -> list[str]:
    "What a reader of the earlier schema would miss in the later one."
    found = []
    for name, shape in before["$defs"].items():
        later = now["$defs"].get(name, {})
        for key, field in shape.get("properties", {}).items():
            there, forms = later.get("properties", {}).get(key), ("type", "anyOf", "$ref", "items")
            if there is None:
                found.append(f"{name}.{key} is gone")
            elif any(
                there.get(form) != field.get(form) for form in (*forms, "additionalProperties", "prefixItems")
            ):
                found.append(f"{name}.{key} has another type")
        found += [
            f"{name}.{key} may be absent"
            for key in {*shape.get("required", ())} - {*later.get("required", ())}
        ]
    return found


def test_a_published_field_neither_goes_nor_changes():
    hint = "a program that reads --json would break; a field that is new needs: python tools/reference.py --publish"
    assert not lost(PUBLISHED, SCHEMA), hint
    assert not lost(SCHEMA, PUBLISHED), f"not published yet: {hint}"


@pytest.mark.parametrize("change", ["gone", "type", "absent"])
def test_the_comparison_sees_a_change(change):
    changed = deepcopy(SCHEMA)
    facts = changed["$defs"]["RunFacts"]
    if change == "gone":
        del facts["properties"]["seconds"]
    elif change == "type":
        facts["properties"]["seconds"] = {"type": "string"}
    else:
        facts["required"].remove("seconds")
    assert [one.split()[0] for one in lost(SCHEMA, changed)] == ["RunFacts.seconds"]


@pytest.mark.parametrize("name", RUNS)
def test_the_job_of_an_earlier_version_is_read(name):
    job = RunDir(EARLIER / "runs" / name).load_job()
    assert job.script and not job.search


def test_a_charge_of_an_earlier_version_is_read_anew_with_its_currency(tmp_path):
    run = RunDir(tmp_path / "20261128-000000000-old-otter")
    run.path.mkdir()
    row = {"format": 3, "id": run.id, "state": "succeeded"}
    for cost, known in ((None, True), (2.0, False)):
        (run.path / "summary.json").write_text(json.dumps({**row, "cost": cost}))
        assert bool(read_summary(run)) is known
