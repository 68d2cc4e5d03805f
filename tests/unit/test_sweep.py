"""A sweep: real trials, a real controller, and what becomes of both when one of them is killed."""

import json
import os
import random
import signal
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import commit_all
from following import events, until

import fsdl_dev
from fsdl_dev.cards.card import card_html, card_text, curves_for_card, make_card
from fsdl_dev.core.errors import FsdlError
from fsdl_dev.core.rundir import list_run_ids
from fsdl_dev.records.find import runs
from fsdl_dev.records.run import Run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
LONG = bool(os.environ.get("LONG"))
# Each trial notes that it ran, then logs without a library; a good one has lr near 1e-3.
TRIAL = """\
import math, os, sys
from pathlib import Path
from fsdl_dev.core.events import current_writer
from fsdl_dev.core.event_kinds import Metric, Progress
given = dict(zip([word.lstrip("-") for word in sys.argv[1::2]], sys.argv[2::2]))
lr, writer = float(given["lr"]), current_writer()
with open(Path(os.environ["FSDL_PROJECT"]) / "ran.txt", "a") as file:
    file.write(os.environ["FSDL_RUN_ID"] + "\\n")
steps = int(given.get("steps", 3))
for step in range(steps):
    writer.write(Progress(step=step + 1, total=steps, stage="train"))
    value = (1 - abs(math.log10(lr) + 3) / 5) * (step + 1) / steps
    writer.write(Metric(step=step + 1, values={"acc": value, "other": 1.0}))
"""
FAILS = "raise ValueError('no such file: data.csv')\n"
NAN = """\
from fsdl_dev.core.events import current_writer
from fsdl_dev.core.event_kinds import Metric
current_writer().write(Metric(step=0, values={"acc": "NaN"}))
"""
BEHIND = """\
import sys, time
from fsdl_dev.core.events import current_writer
from fsdl_dev.core.event_kinds import Metric, Progress
writer = current_writer()
bad = float(sys.argv[2]) > 1
for step in range(9):
    writer.write(Progress(step=step + 1, total=9, stage="train"))
    writer.write(Metric(step=step, values={"acc": 0.1 if bad else 0.9}))
while bad:
    time.sleep(0.1)
"""
SPACE = {"lr": "1e-5..1e-1:log"}


@pytest.fixture
def root(make_project, tmp_path):
    root = make_project(nbdev=0, notebooks={}, folder=tmp_path / "sweep é", git=False)
    scripts = {"trial.py": TRIAL, "fails.py": FAILS, "nan.py": NAN, "behind.py": BEHIND}
    for name, text in scripts.items():
        (root / name).write_text(textwrap.dedent(text))
    (root / ".gitignore").write_text(".fsdl/\nran.txt\n")
    commit_all(root)
    return root


def sweep(root: Path, what: str = "trial.py", **asked) -> Run:
    asked = {"each": SPACE, "trials": 4, "best": "max:acc", "slots": 2, "on": "test", **asked}
    return fsdl_dev.launch(what, folder=root, say=None, **asked)


def test_the_trials_of_a_sweep_and_its_card(root):
    """Trials are runs that know nothing of the search; the card has the best first."""
    said: list[str] = []
    run = fsdl_dev.launch(
        "trial.py", folder=root, say=said.append, each=SPACE, trials=3, best="max:acc", slots=2, on="test"
    )
    run.wait(timeout=300, progress=False)
    assert run.state == "succeeded", run.logs()
    assert "3 runs at most, 2 at once on test" in "\n".join(said)
    trials = runs(tag=f"sweep={run.words}", folder=root)
    assert len(trials) == 3 and {row.state for row in trials} == {"succeeded"}
    assert fsdl_dev.load_run("last", root).id == run.id, "the sweep, not its newest trial"
    values = {row.words: row.best[1] for row in trials}
    assert run.result["acc"] == max(values.values()) == values[run.result["run"]]
    snapshots = {(Path(run.store) / "runs" / row.id / "snapshot.json").read_text() for row in trials}
    assert snapshots == {run.dir.snapshot_file.read_text()}
    card = make_card(run)
    assert {row[4] for row in card.trials[1:]} == {"3"}, "steps of a trial"
    assert card.trials[1][1] == run.result["run"] and card.fraction == 1.0
    hours = {row.words: row.slot_hours for row in runs("slot_hours > 0", folder=root)}
    assert hours.pop(run.words) == pytest.approx(run.cost["slot_hours"]) and run.cost["slots"] == 1
    assert (
        run.cost["slot_hours"] - run.seconds / 3600 == pytest.approx(sum(hours.values())) and len(hours) == 3
    )
    assert "of slots in its trials" in card_text(card)
    for repeat in (lambda: fsdl_dev.reproduce(run, folder=root), lambda: run.package(root / "packed")):
        with pytest.raises(FsdlError, match="A sweep is a search") as refused:
            repeat()
        assert run.result["run"] in refused.value.fix and not (root / "packed").exists()
    assert run.result["run"] in card_text(card) and "median of all" in card_html(card, curves_for_card(card))


@pytest.mark.slow
def test_each_point_is_repeated_over_seeds(root):
    """The first point is the one that was given; the best one is ranked by the mean of its runs."""
    each = {**SPACE, "seed": [1, 2]}
    run = sweep(root, trials=2, each=each, mean="seed", first={"lr": 1e-3})
    run.wait(timeout=300, progress=False)
    assert run.state == "succeeded", run.logs()
    own = {row.words: row.params for row in runs(tag=f"sweep={run.words}", folder=root)}
    assert sorted(one["seed"] for one in own.values()) == [1, 1, 2, 2]
    assert run.result["params"] == {"lr": 1e-3} and run.result["acc"] == pytest.approx(1.0)
    assert (run.result["seeds"], run.result["deviation"]) == (2, 0.0) and own[run.result["run"]]["lr"] == 1e-3
    table = make_card(run).trials
    assert table[1][6] == table[2][6] == "mean 1 ± 0 of 2 seeds" and len(table) == 5, table


@pytest.mark.slow
def test_two_sweeps_side_by_side(root):
    """They share the slots of the machine; each has its own trials and its own best."""
    both = [sweep(root, trials=2, best=best) for best in ("max:acc", "min:acc")]
    for run in both:
        assert run.wait(timeout=300, progress=False).state == "succeeded", run.logs()
    trials = [
        {row.words: row.metrics["acc"] for row in runs(tag=f"sweep={run.words}", folder=root)} for run in both
    ]
    assert len({**trials[0], **trials[1]}) == 4
    assert all(len(own) == 2 and run.result["run"] in own for run, own in zip(both, trials))


@pytest.mark.slow
def test_a_trial_that_falls_behind_is_stopped(root):
    """The third trial is no better than the best third at the first rung: it is cancelled, and the log says why."""
    run = sweep(
        root, "behind.py", each={"rate": [0.5, 0.6, 9.0]}, trials=None, search="grid", stop="asha", slots=1
    )
    run.wait(timeout=300, progress=False)
    ended = {event["params"]["rate"]: event for event in events(run, "trial")}
    assert [ended[rate]["state"] for rate in (0.5, 0.6, 9.0)] == ["done", "done", "stopped"], run.logs()
    assert "rung 1 of asha: 0.1 after 1 step" in ended[9.0]["why"]
    assert "1 stopped" in dict(make_card(run).notes)["trials"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "asked", "said"),
    [
        ("trial.py", {"best": "max:accc"}, "Did you mean 'acc'"),
        ("fails.py", {}, "failed in the same way: ValueError: no such file: data.csv"),
        ("nan.py", {"slots": 1}, "failed in the same way: acc is NaN after 1 step"),
    ],
)
def test_a_sweep_that_cannot_succeed_ends_early(root, what, asked, said):
    """No trial logs the metric, every trial fails in the same way, or is not a number: few runs, and the reason."""
    run = sweep(root, what, trials=20, **asked)
    run.wait(timeout=300, progress=False)
    assert run.state == "failed" and said in run.failure.text(), run.failure
    assert not {"queued", "running"} & {row[2] for row in make_card(run).trials}, "its trials have ended too"
    assert len(runs(tag=f"sweep={run.words}", folder=root, limit=None)) <= 5


def test_a_search_that_cannot_be_made_is_refused(root):
    """Nothing is launched for a wrong line."""
    for asked, said in (
        ({"each": {"lr": "1e-5...1e-1"}}, "not a range"),
        ({"each": {"lr": "1..0"}}, "is empty"),
        ({"each": {"lr": "0..1:log"}}, "no logarithm"),
        ({"each": {}}, "nothing to search"),
        ({"each": {"lr": "low..high"}}, "not a range"),
        ({"each": {"lr": 0.1}}, "not a list of values"),
        ({"slots": 0}, "not a number of runs"),
        ({"search": "tpee"}, "Did you mean 'tpe'"),
        ({"best": None}, "the metric that decides"),
        ({"best": "up:acc"}, "--best max:acc"),
        ({"each": {"l r": "1..2"}}, "'l r=1..2' is not of the form"),
        ({"each": "lr=1..2"}, "each is a dict of names and values"),
        ({"tags": ["task=a"]}, "tags is a dict of names and values"),
        ({"trials": None, "best": None, "slots": None}, "a search picks some of them"),
    ):
        with pytest.raises(FsdlError, match=said):
            sweep(root, **asked)
    assert not list_run_ids(root / ".fsdl") and not list_run_ids(Path(os.environ["FSDL_STORE"]))


def test_without_optuna_the_extra_is_named(root, monkeypatch):
    """The package itself needs no Optuna."""
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(FsdlError, match="fsdl-dev\\[sweep\\]"):
        sweep(root)


@pytest.mark.tier("long", "False")
@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_resume_a_sweep(root, killed):
    """A cancelled sweep cancels its trials, one whose worker is killed leaves them: a resumed one takes them over."""
    run = sweep(root, trials=3, slots=1)
    until(lambda: any(event["state"] == "done" for event in events(run, "trial")), run.logs)
    if killed:
        os.kill(json.loads((run.path / "worker.json").read_text())["pid"], signal.SIGKILL)
    else:
        run.cancel()
    run.wait(timeout=300, progress=False)
    assert run.state in ("lost" if killed else "cancelled", "succeeded"), run.dir.last_state()
    if not killed:
        assert not {"queued", "running"} & {row[2] for row in make_card(run).trials}
    before = list_run_ids(root / ".fsdl")
    for asked in (
        {"best": "min:acc"},
        {"params": {"lr": 1}},
        {"each": {"lr": "1..2"}},
        {"on": "local"},
        {"procs": 2},
    ):
        with pytest.raises(FsdlError, match="A sweep that goes on has the trials that it had"):
            fsdl_dev.launch(resume=run.words, folder=root, say=None, **asked)
    assert "fsdl_dev.worker" in str(fsdl_dev.launch(resume=run.words, folder=root, say=None, dry_run=True))
    assert not [check for check in fsdl_dev.check(resume=run.words, folder=root, say=None) if check.failed]
    assert list_run_ids(root / ".fsdl") == before, "nothing was launched"
    again = fsdl_dev.launch(resume=run.words, folder=root, say=None, on="test")
    again.wait(timeout=300, progress=False)
    assert again.state == "succeeded", again.logs()
    assert again.result["trials"] == {"done": 3}
    ran = (root / "ran.txt").read_text().split()
    assert len(set(ran)) == len(ran) and (not killed or len(ran) == 3)


def controller(run: Run) -> int | None:
    "The process of a sweep's job: the one that writes its log."
    for link in Path("/proc").glob("[0-9]*/fd/1"):
        with suppress(OSError):
            if link.readlink() == run.dir.log(0):
                return int(link.parts[2])
    return None


@pytest.mark.slow
def test_a_killed_controller_loses_no_trial(root):
    """Killed with -9 at random moments, it is started again: each trial ran once, none is lost."""
    kills, trials = (10, 24) if LONG else (2, 6)
    run = sweep(root, trials=trials, slots=3)
    rng = random.Random(7)
    for number in range(kills):
        wanted = rng.uniform(number, number + 0.9) * trials / kills
        until(lambda: len(list_run_ids(run.store)) - 1 >= wanted or not run.refresh().alive, run.logs)
        pid = until(lambda: controller(run) or not run.refresh().alive, run.logs)
        if pid is not True:
            os.kill(pid, signal.SIGKILL)
            until(lambda: len(events(run, "restart")) > number or not run.refresh().alive, run.logs)
    run.wait(timeout=600, progress=False)
    assert run.state == "succeeded", run.logs()
    assert events(run, "restart") and run.result["trials"] == {"done": trials}
    ran = (root / "ran.txt").read_text().split()
    assert len(ran) == len(set(ran)) == trials
    done = [json.loads(json.dumps(event)) for event in events(run, "trial") if event["state"] == "done"]
    assert len({event["number"] for event in done}) == len({event["run"] for event in done}) == trials


def worker_pid(run: Run) -> int | None:
    "The process id of a run's worker, once it has one."
    with suppress(OSError, ValueError, KeyError):
        return json.loads((run.path / "worker.json").read_text())["pid"]
    return None


@pytest.mark.slow
def test_a_sweep_that_is_killed_before_its_journal(root):
    """It can be resumed, and so can what was resumed from it; a trial whose worker is killed runs again."""
    run = sweep(root, "trial.py", trials=3, slots=1)
    first = run.words
    for _ in range(2):
        os.kill(until(lambda: worker_pid(run)), signal.SIGKILL)
        assert run.wait(timeout=300, progress=False).state == "lost"
        assert not (run.path / "sweep.journal").exists(), "the kill was late"
        run = fsdl_dev.launch(resume=run.words, folder=root, say=None, on="test")
    killed = None
    while killed is None and run.refresh().alive:
        for row in runs(tag=f"sweep={first}", folder=root, state="running"):
            trial = fsdl_dev.load_run(row.id, root)
            if pid := worker_pid(trial):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed = trial
    run.wait(timeout=300, progress=False)
    assert run.state == "succeeded" and run.result["trials"] == {"done": 3}, run.logs()
    assert killed and killed.state in ("lost", "succeeded")
    assert (killed.state == "lost") == ("again, after lost" in run.logs())
