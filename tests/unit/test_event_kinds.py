"""Kinds of events: what earlier versions wrote folds as it did, and the schema accepts every line."""

import json
import os
import re
import subprocess

import jsonschema
import pytest
from repository import PACKAGE, ROOT, SUPPORT

from fsdl_dev.core.event_kinds import EVENT_KINDS, Event, event_of
from fsdl_dev.core.events import EventTail, EventWriter
from fsdl_dev.core.fold.view import RunView, view_from_text, view_text
from fsdl_dev.engines.kubernetes import script as kubernetes
from fsdl_dev.engines.ray import script as ray
from fsdl_dev.engines.remote.script_parts import SOURCE_FUNCTIONS, START_FUNCTIONS
from fsdl_dev.records.facts import event_schema, field_notes, field_types

# each kind once, as version 0.1 wrote it; "forecast" and the field "unit" are of a version to come
EARLIER = json.loads((SUPPORT / "event_lines.json").read_text(encoding="utf-8"))
LINES = [line for lines in EARLIER["files"].values() for line in lines]
NEWER = ("forecast", "unit")
LATER = {"sealed", "standstill", "meter"}  # kinds that version 0.1 did not write


def test_lines_of_an_earlier_version_fold_as_they_did(tmp_path):
    for name, lines in EARLIER["files"].items():
        (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    view = RunView().update(EventTail(tmp_path).stream())
    assert not EARLIER["view"].keys() - as_it_was(view).keys(), "every field of the earlier view is compared"
    again = view_from_text(view_text(view))  # what the index keeps is the same
    for known in (view, again):
        assert json.loads(json.dumps(as_it_was(known), default=Event.line)) == EARLIER["view"]


def as_it_was(view: RunView) -> dict:
    "The fields of the view of version 0.1, taken from the parts of this one."
    life, progress, made, inputs = view.life, view.progress, view.products, view.inputs
    names = ("state", "reason", "times", "told", "handed", "ended", "exit_code", "position", "spent")
    found = {name: getattr(life, name) for name in names}
    names = ("step", "total", "cells", "epoch", "epochs", "stage", "staged", "first", "rate")
    found |= {name: getattr(progress, name) for name in names} | vars(view.machines)
    speed = {name: value for name, value in vars(view.speed).items() if value is not None}
    if view.speed.shares:
        names = ("data", "compute", "communication", "checkpoint", "validation", "other")
        speed["shares"] = {name: view.speed.shares.get(name, 0.0) for name in names}
    metrics, lives = view.metrics.by_name, ("t", "count", "reason", "from_step")
    used, wait, pace, outputs = view.resources.now, life.wait, progress.pace, made.outputs
    found |= {
        "phases": [vars(phase) for phase in view.way.phases],
        "queue": vars(wait) if wait else {},
        "restarts": [{name: getattr(one, name) for name in lives} for one in view.restarts.events],
        "accounting": view.cost.accounting.as_dict(),
        "accounted": view.cost.told,
        "contact": {},
        "pace": [pace.t, pace.step, pace.steps, pace.seconds] if pace else [],
        "speed": speed,
        "series": view.metrics.series,
        "seen": {name: one.seen for name, one in metrics.items()},
        "latest": view.metrics.latest,
        "lowest": {name: one.lowest for name, one in metrics.items() if one.lowest},
        "highest": {name: one.highest for name, one in metrics.items() if one.highest},
        "owners": {name: one.owner for name, one in metrics.items()},
        "modes": view.metrics.modes,
        "points": view.metrics.most,
        "usage": {"t": used.t, "cpu": used.cpu, "rss": used.rss, "gpu": [*map(vars, used.gpus)]}
        if used
        else {},
        "peak": {"cpu": view.resources.cpu, "rss": view.resources.rss, "gpu": view.resources.gpu_memory},
        "checkpoints": view.checkpoints.events,
        "failures": view.failures.events,
        "notes": view.remarks.notes,
        "tags": view.remarks.tags,
        "data": inputs.digests,
        "splits": inputs.splits,
        "environment": inputs.environment,
        "variables": inputs.variables,
        "artifacts": made.exports,
        "samples": made.samples,
        "outputs": outputs or {},
        "result": made.result,
        "trackers": view.services.trackers,
        "trials": view.search.trials,
        "sweep": view.search.summary or {},
        "last_t": life.clock.newest,
        "clocks": life.clock.boots,
        "behind": life.clock.behind,
        "count": view.count,
    }
    return found


def test_the_earlier_lines_have_every_kind():
    assert {line["kind"] for line in LINES} - {"forecast"} == set(EVENT_KINDS) - LATER


def test_a_line_becomes_its_kind_and_is_written_as_it_was():
    for line in LINES:
        event = event_of(line)
        if line["kind"] in NEWER:
            assert event is None
            continue
        assert event is not None, line
        known = {name: value for name, value in line.items() if name not in ("kind", *NEWER)}
        # a null that says nothing is left out today
        again = event.as_dict()
        assert {**known, **again} == known and all(known[name] is None for name in known.keys() - again), line


def test_the_schema_accepts_known_lines_and_only_them():
    as_written, closed = (jsonschema.Draft202012Validator(event_schema(is_open)) for is_open in (True, False))
    for line in LINES:
        as_written.validate(line)
        assert closed.is_valid(line) != bool({line["kind"], *line} & set(NEWER)), line
    assert not as_written.is_valid({"t": 1.0, "kind": "progress", "rank": 0, "step": "three"})
    assert not as_written.is_valid({"t": 1.0, "kind": "metric", "rank": 0})


def test_every_field_is_described():
    plain = {"message", "exit_code", "text", "who", "why", "value", "status", "metric", "step", "stage"}
    for kind, cls in EVENT_KINDS.items():
        missing = field_types(cls).keys() - field_notes(cls).keys() - plain
        assert not missing, f"{kind}: no comment beside {', '.join(sorted(missing))}"


def test_a_writer_takes_events_alone(tmp_path):
    with pytest.raises(AttributeError):
        EventWriter(tmp_path / "x.jsonl").write("note")  # type: ignore[arg-type]
    by_name = re.compile(r"""\.write\(\s*["'](%s)["']\s*[,)]""" % "|".join(EVENT_KINDS))
    named = [
        path for path in (ROOT / PACKAGE).rglob("*.py") if by_name.search(path.read_text(encoding="utf-8"))
    ]
    assert not named


# what writes events without this package: text of a shell, before there is a Python, and the driver of a Ray job
SHELL = {
    "nothing is there": f"RUNTIME=/nowhere\n{SOURCE_FUNCTIONS}",
    "it cannot start": f"{START_FUNCTIONS}\nfail 'no \"disk\"' here 'buy one'",
    "it makes its environment": f"{START_FUNCTIONS}\nbegan=$(date +%s)\nphase start 'so far'; phase end 'done'",
    "it has an image": f'{START_FUNCTIONS}\nevent note \'"level": "info", "text": "image x"\'',
    "its bucket keeps the first": f"BUCKET={{folder}} ID=x JOB_COMPLETION_INDEX=0\ncat() {{ :; }}\n{kubernetes._PROBE}",
}


@pytest.mark.parametrize("what", [*SHELL, "a machine of Ray's is lost"])
def test_lines_of_other_writers_are_of_the_schema(what, tmp_path):
    run = tmp_path / "runs" / "x"
    (run / "events").mkdir(parents=True)
    if what in SHELL:
        program = SHELL[what].replace("{folder}", str(tmp_path)).replace("{cat}", "cat")
        subprocess.run(["sh", "-c", program], env={**os.environ, "RUN": str(run)}, capture_output=True)
    else:
        ray._write_event(str(run), "note", level="warn", text="again")
        ray._write_event(
            str(run), "failure", type="NodeLost", message="n1", node="n1", frames=[], traceback=""
        )
    schema = jsonschema.Draft202012Validator(event_schema(open_ended=False))
    lines = [json.loads(line) for path in run.rglob("*.jsonl") for line in path.read_text().splitlines()]
    assert lines
    for line in lines:
        schema.validate(line)
        assert event_of(line) is not None
