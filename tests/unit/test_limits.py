"""Caps in money and GPU hours, with real launches at a price at which a dollar is soon spent.

The money is what is asserted here: what a run used, as its own events say it, never how long anything took.
"""

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from conftest import commit_all
from following import events, until

import fsdl_dev
from fsdl_dev.cards.card import card_text, make_card
from fsdl_dev.cards.journey import say_cost
from fsdl_dev.core.errors import FsdlError
from fsdl_dev.core.event_kinds import Accounting, Meter, Metric, State
from fsdl_dev.core.fold.life import UNSEEN_SECONDS
from fsdl_dev.core.job import Job, LaunchRecord, Resources
from fsdl_dev.core.rundir import Placement, RunDir, create_run_dir, write_json
from fsdl_dev.core.settings import find_project
from fsdl_dev.core.units import Money
from fsdl_dev.launcher.limits import ledger_of
from fsdl_dev.money.budgets import Budget, Share
from fsdl_dev.money.ledger import Draw, Ledger, run_used
from fsdl_dev.money.limits import Limit, limits_to_json, price_to_json
from fsdl_dev.money.meter import Pot, run_meter, spent_by
from fsdl_dev.money.price import Price
from fsdl_dev.records.checkpoints import verify_checkpoint
from fsdl_dev.records.run import Run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
PATIENCE = 300  # seconds; a test that needs more has failed
FSDL = [sys.executable, "-c", "import sys; from fsdl_dev.cli.main import main; sys.argv[0] = 'fsdl'; main()"]
CENTS = 0.05  # how near a cap a run has to end

TRAINER = """
    import sys, time
    import pytorch_lightning as pl, torch
    from torch.utils.data import DataLoader, TensorDataset
    import fsdl_dev
    from fsdl_dev.train.checkpoints.one_file import RunCheckpoint

    class Net(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)
        def training_step(self, batch, index):
            time.sleep(0.02)
            return (self.layer(batch[0]) - 1).square().mean()
        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), 1e-2)
        def on_save_checkpoint(self, checkpoint):
            time.sleep(float(sys.argv[2]))  # as a large model takes

    own = fsdl_dev.Trainer if sys.argv[1] == "ours" else pl.Trainer
    every = {"callbacks": [RunCheckpoint(every_n_train_steps=150)]} if float(sys.argv[2]) else {}
    trainer = own(max_steps=10**9, accelerator="cpu", enable_model_summary=False, enable_progress_bar=False, **every)
    trainer.fit(Net(), DataLoader(TensorDataset(torch.randn(1600, 8)), 16))
"""
HUGGING_FACE = """
    import os, time, torch, transformers
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=64, n_positions=32)
    model = transformers.GPT2LMHeadModel(config)
    class Slow(transformers.TrainerCallback):
        def on_step_end(self, *ignored, **more):
            time.sleep(0.02)
    rows = [{"input_ids": torch.arange(16) % 64, "labels": torch.arange(16) % 64}] * 64
    folder = os.path.join(os.environ["FSDL_RUN_DIR"], "checkpoints", "hf")
    own = transformers.TrainingArguments(
        folder, max_steps=10**6, save_steps=100, save_total_limit=2, report_to=[], disable_tqdm=True, use_cpu=True)
    transformers.Trainer(model, own, train_dataset=rows, callbacks=[Slow()]).train()
"""
IGNORES = """
    import signal, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(0.05)
"""
SAVES = """
    import os, signal, sys, time
    def save(*ignored):
        time.sleep(0.5)
        with open(os.path.join(os.environ["FSDL_RUN_DIR"], "checkpoints", "saved.txt"), "w") as file:
            file.write("whole")
        sys.exit(143)
    signal.signal(signal.SIGTERM, save)
    while True:
        time.sleep(0.05)
"""
ENDS = "import sys, time\ntime.sleep(float(sys.argv[1]))\nprint('done')\n"
TRIAL = """
    import time
    from fsdl_dev.train.loggers import log
    for step in range(1000):
        time.sleep(0.05)
        log(step, loss=1 / (step + 1))
"""


@pytest.fixture
def root(make_project, tmp_path, monkeypatch):
    monkeypatch.setenv("FSDL_SLOTS", "16")
    root = make_project(nbdev=0, notebooks={}, folder=tmp_path / "caps é", git=False)
    scripts = {
        "trainer": TRAINER,
        "hugging": HUGGING_FACE,
        "ignores": IGNORES,
        "saves": SAVES,
        "trial": TRIAL,
    }
    for name, text in {**scripts, "ends": ENDS}.items():
        (root / f"{name}.py").write_text(textwrap.dedent(text))
    settings(root)
    commit_all(root)
    return root


def settings(root: Path, hour: object = 180, budgets: str = "", **more: str) -> None:
    "Prices of the project's targets, and its budgets."
    own = "".join(f"{key} = {value}\n" for key, value in more.items())
    text = f"[tool.fsdl_dev]\ngrace_seconds = 20\n{own}[tool.fsdl_dev.prices]\n"
    if hour is not None:
        text += "".join(f"{target} = {hour}\n" for target in ("test", "local"))
    (root / "pyproject.toml").write_text(text + (f"[tool.fsdl_dev.budgets]\n{budgets}\n" if budgets else ""))


def capped(root: Path, script: str, *args: object, **asked) -> Run:
    asked = {"on": "test", "gpus": 0, **asked}
    return fsdl_dev.launch(script, args=[*map(str, args)], folder=root, say=None, **asked)


def ended(run: Run) -> Run:
    run.wait(timeout=PATIENCE, progress=False)
    return run


def cost(run) -> float:
    return run_used(getattr(run, "dir", run), "money", "USD")


def fsdl(root: Path, *words: str, code: int | None = 0) -> str:
    done = subprocess.run([*FSDL, *words], cwd=root, capture_output=True, text=True, timeout=PATIENCE)
    said = f"{done.stdout}\n{done.stderr}"
    assert code in (None, done.returncode) and "Traceback" not in said, f"{done.returncode}\n{said}"
    return said


def refused(function, *args, **named) -> str:
    with pytest.raises(FsdlError) as error:
        function(*args, **named)
    return str(error.value)


def made(store: Path, *readings: Meter, state: str = "", **record) -> RunDir:
    "A run directory with what its worker wrote."
    run = create_run_dir(store, Job("script", "job", script="job.py"), LaunchRecord(**record))
    for reading in readings:
        run.writer("worker").write(reading)
    if state:
        run.writer("observer").write(State(state=state, reason=""))
    return run


def reading(dollars: float, hour: float = 180.0, **more) -> Meter:
    seconds = dollars / hour * 3600
    own = {"slots": 1, "device": "cpu", "hour": hour, "currency": "USD", "cost": dollars}
    return Meter(seconds=seconds, slot_seconds=seconds, **{**own, **more})


# --- one run ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_dollar_is_a_dollar(root):
    "Each kind of job ends within five cents of its cap, and what it saved can be loaded."
    settings(root, 60)
    started = {
        "ours": ("trainer.py", "ours", 0), "plain": ("trainer.py", "plain", 0), "hugging": ("hugging.py",),
        "ignores": ("ignores.py",), "saves": ("saves.py",),
    }  # fmt: skip
    with ThreadPoolExecutor(5) as pool:
        runs = pool.map(lambda words: ended(capped(root, *words, max_cost="1")), started.values())
    runs = dict(zip(started, runs))
    spent = {name: cost(run) for name, run in runs.items()}
    print(spent)
    for name, run in runs.items():
        assert run.state == "failed" and run.view.failures.first.type == "OverBudget", (name, run.logs())
        assert "--max-cost 1" in run.view.reason and "--max-cost 2" in run.failure.text(), name
        assert abs(spent[name] - 1) <= CENTS, spent
    for name in ("ours", "plain"):
        verify_checkpoint(runs[name].last)
        held = torch.load(runs[name].last.path, weights_only=True)
        assert held["global_step"] == runs[name].last.step > 0 and "layer.weight" in held["state_dict"]
    assert (runs["saves"].path / "checkpoints" / "saved.txt").read_text() == "whole"
    *_, newest = sorted(
        (runs["hugging"].path / "checkpoints" / "hf").glob("checkpoint-*"), key=os.path.getmtime
    )
    transformers = pytest.importorskip("transformers")
    assert transformers.GPT2LMHeadModel.from_pretrained(newest).config.n_embd == 16


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_save_of_five_seconds_ends_in_time(root):
    "How long a save takes is known by the ones before, and a second name of a checkpoint takes no time."
    settings(root, 60)
    run = ended(capped(root, "trainer.py", "ours", 5, max_cost="1"))
    verify_checkpoint(run.last)
    told = [event for event in events(run, "state") if event["state"] == "stopping"]
    after = [
        event for event in events(run, "checkpoint") if event["t"] > told[0]["t"] and event.get("seconds")
    ]
    assert after and after[-1]["seconds"] >= 5, "it saved once more, whole"
    assert 0.8 < cost(run) <= 1 + CENTS


@pytest.mark.slow
def test_the_ranks_of_a_run_share_its_cap(root):
    "Two processes without a GPU are two slots: they use it twice as fast."
    one, two = (capped(root, "ignores.py", procs=procs, max_cost="1.2") for procs in (1, 2))
    assert [events(ended(run), "meter")[-1]["slots"] for run in (one, two)] == [1, 2]
    for run, procs in ((one, 1), (two, 2)):
        (*_, last) = events(run, "meter")
        assert last["closed"] and last["slot_seconds"] == pytest.approx(procs * last["seconds"], abs=0.01)
        assert 1.2 - 2 * CENTS < cost(run) < 1.2 + procs * CENTS and run.state == "failed"


@pytest.mark.slow
def test_the_exit_status_and_what_is_shown(root):
    "79 says that money ended it; the card, the list and --json say what was spent."
    said = fsdl(
        root,
        "launch",
        "ignores.py",
        "--on",
        "test",
        "--max-cost",
        "0.3",
        "--max-gpu-hours",
        "1",
        "--wait",
        code=79,
    )
    assert "its limit of 0.30 USD (--max-cost 0.3) is reached" in said and "--max-cost 0.6" in said
    run = fsdl_dev.load_run("last", root)
    assert "of 0.30 USD (--max-cost 0.3) · 0.00" in say_cost(run.view) and "accounted: 0.3" in card_text(
        make_card(run)
    )
    facts = json.loads(fsdl(root, "show", "last", "--json"))
    spent = facts["cost"]
    assert spent["money"]["USD"] == pytest.approx(cost(run), abs=0.01) and spent["source"].startswith(
        "[tool."
    )
    assert [limit["kind"] for limit in spent["limits"]] == ["money", "gpu_hours"]
    assert spent["limits"][0]["used"] == pytest.approx(cost(run), abs=0.01)
    (row,) = json.loads(fsdl(root, "runs", "--json"))
    assert row["cost"] == pytest.approx(cost(run), abs=0.01) and row["currency"] == "USD"
    assert f"{cost(run):.2f} USD" in fsdl(root, "runs", "--columns", "cost")
    for amount, why in (("0", "no amount of money above 0"), ("-1", "no amount"), ("3 EUR", "prices in USD")):
        assert why in fsdl(root, "launch", "ignores.py", "--on", "test", "--max-cost", amount, code=None)


@pytest.mark.slow
def test_a_resumed_run_has_what_was_left(root):
    "What a run has used counts where another goes on from it, also over one that had no cap."
    first = ended(capped(root, "trainer.py", "ours", 0, max_cost="2"))
    assert "What is left is no more" in refused(
        capped, root, "trainer.py", "ours", 0, resume=first.words, max_cost="2"
    )
    second = ended(capped(root, "trainer.py", "ours", 0, resume=first.words, max_cost="3"))
    assert cost(first) + cost(second) == pytest.approx(3, abs=0.1)
    free = capped(root, "trainer.py", "ours", 0, resume=second.words)
    until(lambda: free.last and spent_by(free.dir).money > 0.3)
    free.cancel()
    ended(free)
    assert "Nothing is left" in refused(
        capped, root, "trainer.py", "ours", 0, resume=free.words, max_cost="3"
    )
    settings(root, 360)  # a price that changed since: what was spent stays
    third = capped(root, "trainer.py", "ours", 0, resume=free.words, max_cost="10")
    (limit,) = third.dir.job().launch.limits
    assert limit["before"] == pytest.approx(cost(first) + cost(second) + cost(free), abs=1e-3)
    third.cancel()
    settings(root, '"180 EUR"')
    said = refused(capped, root, "trainer.py", "ours", 0, resume=first.words, max_cost="9")
    assert "no rate is known" in said and first.words in said


@pytest.mark.slow
def test_a_run_that_is_repeated_has_its_own_cap(root):
    run = ended(capped(root, "saves.py", max_cost="0.2"))
    again = fsdl_dev.reproduce(run, folder=root)
    again = ended(getattr(again, "run", again))
    (limit,) = again.dir.job().launch.limits
    assert (
        limit["before"] == 0.0 and limit["amount"] == 0.2 and again.view.failures.first.type == "OverBudget"
    )


# --- lives that are killed --------------------------------------------------------------------------------------------


def engine_run(root: Path, text: str, dollars: float, hour: float = 60.0) -> RunDir:
    "A run as an engine has it that starts it again after it was killed."
    store, code = root / "store", root / "code"
    code.mkdir()
    (code / "job.py").write_text(textwrap.dedent(text))
    own = LaunchRecord(
        limits=tuple(limits_to_json([Limit("money", dollars, "USD", f"--max-cost {dollars:g}")])),
        price=price_to_json(Price(Money(hour, "USD"))),
    )
    run = create_run_dir(store, Job("script", "job", script="job.py", resources=Resources(gpus=0)), own)
    write_json(run.snapshot_file, {"digest": "none", "code": str(code)})
    place = Placement(
        project=str(root),
        store=str(store),
        allocation="engine",
        requeue="test",
        grace_seconds=20,
        slots=(0,),
        device="cpu",
    )
    write_json(run.path / "placement.json", place.to_dict())
    return run


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_kills_never_spend_the_cap_twice(root):
    "What a killed worker used unseen is counted: all lives together use no more than the cap."
    dollars, hour = 2.0, 60.0
    run, rng, lived = engine_run(root, SAVES, dollars, hour), random.Random(7), 0.0
    command = [sys.executable, "-P", "-m", "fsdl_dev.worker.worker", str(run.path)]
    for _ in range(10):
        with open(run.worker_log, "a") as log:
            worker = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        number = len(events(run, "meter"))
        until(
            lambda: len(events(run, "meter")) > number or worker.poll() is not None,
            lambda: run.worker_log.read_text(),
        )
        began = time.monotonic()
        if worker.poll() is not None:
            break
        try:
            worker.wait(rng.uniform(0, 9))
        except subprocess.TimeoutExpired:
            os.kill(worker.pid, signal.SIGKILL)
            worker.wait()
        lived += time.monotonic() - began
    else:
        with open(run.worker_log, "a") as log:
            subprocess.run(command, stdout=log, stderr=log, timeout=PATIENCE)
    last = run.last_state("worker")
    counted = events(run, "meter")[-1]["cost"]
    assert last["state"] == "failed" and "(--max-cost 2)" in last["reason"], run.worker_log.read_text()
    assert lived / 3600 * hour <= counted + CENTS, "what was used is counted"
    assert lived / 3600 * hour <= dollars + CENTS


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("jump", [3600, -3600])
def test_a_clock_that_is_set_while_a_run_goes_on(root, jump):
    "An hour forward or back is neither spent nor won."
    library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
    if library is None:
        pytest.skip("needs libfaketime (Debian: apt-get install faketime)")
    # libfaketime breaks time.sleep
    run = engine_run(root, SAVES.replace("time.sleep(", "signal.sigtimedwait([], "), 0.5)
    clock = root / "clock"
    clock.write_text("+0\n")
    fake = {"LD_PRELOAD": str(library), "FAKETIME_TIMESTAMP_FILE": str(clock), "FAKETIME_NO_CACHE": "1"}
    fake |= {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1"}
    command = [sys.executable, "-P", "-m", "fsdl_dev.worker.worker", str(run.path)]
    with open(run.worker_log, "a") as log:
        worker = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **fake})
    until(lambda: len(events(run, "meter")) > 1)
    clock.write_text(f"{jump:+d}s\n")
    worker.wait(PATIENCE)
    assert "(--max-cost 0.5)" in run.last_state("worker")["reason"], run.worker_log.read_text()
    assert abs(cost(run) - 0.5) < 2 * CENTS


def test_what_a_killed_run_used_unseen_is_counted(tmp_path):
    "A run whose worker was killed has used more than it last wrote: until its last sign of life, and an interval."
    run = made(tmp_path, reading(1.0))
    run.writer("rank0", 0).write(Metric(step=1, values={"loss": 1.0}))
    (told,) = events(run, "meter")
    lasted = events(run, "metric")[0]["t"] - told["t"]
    assert cost(run) == 1.0, "it goes on"
    run.writer("observer").write(State(state="lost", reason="gone", ended=told["t"] + lasted))
    unseen = (lasted + UNSEEN_SECONDS) / 3600 * 180
    assert cost(run) == pytest.approx(1 + unseen, abs=1e-3) and spent_by(run).money == pytest.approx(
        1 + unseen, abs=1e-3
    )
    before = run_meter(run, run.writer("worker"), tmp_path, told["t"] + lasted).before
    assert before.money == 0.0, "without a price or a limit nothing is counted"
    run.writer("worker").write(reading(1 + unseen + 0.5, t=told["t"] + 100))
    assert cost(run) == pytest.approx(1.5 + unseen, abs=1e-3), "a later life has counted it, once"


# --- several runs of one limit ----------------------------------------------------------------------------------------


def test_hours_and_money_of_an_array_are_two_pots(tmp_path):
    "Both are shared under one name; dollars are never read as hours."
    shared = {"pot": "sweep lr-120000", "pot_id": "sweep lr-120000 abc"}
    limits = [
        Limit("money", 100.0, "USD", "--max-cost 100", **shared),
        Limit("gpu_hours", 1.0, "", "--max-gpu-hours 1", **shared),
    ]
    record = {"limits": tuple(limits_to_json(limits)), "price": price_to_json(Price(Money(3600.0, "USD")))}
    one, two = made(tmp_path, **record), made(tmp_path, **record)
    for run in (one, two):
        meter = run_meter(run, run.writer("worker"), tmp_path)
        meter.start(1, gpus=False)
        meter.before = meter.before._replace(money=50.0, slot_seconds=50.0)
        meter.tick(closed=True)
    late = run_meter(made(tmp_path, **record), one.writer("worker"), tmp_path)
    late._ask_pots()
    assert [late._others[limit].used for limit in limits] == pytest.approx([100.0, 100 / 3600], rel=0.05)
    assert late.used_up() == limits[0]
    other = Limit(
        "money", 100.0, "USD", "--max-cost 100", pot="sweep lr-120000", pot_id="sweep lr-120000 def"
    )
    assert other.folder_in(tmp_path) != limits[0].folder_in(tmp_path), (
        "an array of the same second, a day later"
    )


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_a_clock_that_jumps_an_hour_changes_no_pot(tmp_path, monkeypatch, jump):
    mine, other = Pot(tmp_path, "mine"), Pot(tmp_path, "other")
    other.write(1.0, 180.0)
    assert mine.others().used == pytest.approx(1.0, abs=0.1)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    for pot in (mine, Pot(tmp_path, "late")):  # one that reads for the first time after the jump, too
        assert pot.others().used == pytest.approx(1.0, abs=0.2) and pot.others().an_hour == 180.0
    own = json.loads((tmp_path / "other.json").read_text())
    (tmp_path / "other.json").write_text(
        json.dumps({**own, "clock": ["another machine", 5.0], "t": real() - jump})
    )
    monkeypatch.undo()
    assert mine.others().used <= 1.0 + 180 * 61 / 3600


def test_a_pot_with_damaged_files(tmp_path):
    "What cannot be read says what it said before, else what the events of its run say."
    pot = Pot(tmp_path, "mine", lambda run_id: {"told.json": 0.0, "never": 3.0}.get(run_id, 0.0))
    Pot(tmp_path, "told").write(2.0, 0.0)
    assert pot.others().used == 2.0
    (tmp_path / "told.json").write_text('{"used": 2')
    (tmp_path / "never.json").write_bytes(b"\0\0")
    (tmp_path / "nan.json").write_text('{"used": NaN, "an_hour": 0, "t": 1}')
    assert pot.others().used == 5.0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_several_runs_of_one_budget(root):
    "They overshoot it together by less than a save each; what the ledger says is what they spent."
    settings(root, 60, 'night = "1 USD"')
    scripts = ["ignores.py", "saves.py", "ignores.py", "saves.py"]
    runs = [capped(root, script, budget="night") for script in scripts]
    spent = [cost(ended(run)) for run in runs]
    print(spent)
    assert {run.view.failures.first.type for run in runs} == {"OverBudget"}
    save = 2 / 3600 * 60
    assert 1 - CENTS - 4 * save < sum(spent) < 1 + 4 * save
    (row,) = json.loads(fsdl(root, "budgets", "--json"))
    assert row["spent"] == pytest.approx(sum(spent), abs=0.01) and row["launches"] == 0
    if row["left"] > 0.01:
        late = ended(capped(root, "ignores.py", budget="night"))
        assert sum(spent) + cost(late) < 1 + 5 * save
    fsdl(root, "rm", "--yes", *(run.words for run in runs))
    (row,) = json.loads(fsdl(root, "budgets", "--json"))
    assert row["spent"] >= sum(spent) - 0.01, "runs that are removed have spent it all the same"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_twelve_launches_race_for_five_dollars(root):
    settings(root, 180, 'race = "5 USD"')
    words = [
        *FSDL,
        "launch",
        "-d",
        "ends.py",
        "--on",
        "test",
        "--max-cost",
        "1",
        "--budget",
        "race",
        "--",
        "60",
    ]
    launches = [
        subprocess.Popen(words, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(12)
    ]
    said = [launch.communicate(timeout=PATIENCE)[0] for launch in launches]
    statuses = [launch.returncode for launch in launches]
    assert statuses.count(0) == 5 and statuses.count(3) == 7, "\n".join(said)
    assert all("0.00 USD left" in text for text, status in zip(said, statuses) if status)
    (row,) = json.loads(fsdl(root, "budgets", "--json"))
    assert (row["spent"], row["reserved"], row["left"], row["launches"]) == (0.0, 5.0, 0.0, 5)
    fsdl(root, "cancel", "state = queued or state = running or state = starting", "--yes")
    (row,) = json.loads(fsdl(root, "budgets", "--json"))
    assert row["reserved"] == 0.0 and 0 < row["spent"] < 5, "what was not used is there again"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_runs_of_an_array_share_its_cap(root):
    group = fsdl_dev.launch(
        "trial.py",
        folder=root,
        on="test",
        gpus=0,
        say=None,
        each={"lr": [1, 2, 3]},
        max_cost="1",
        max_gpu_hours="5",
    )
    group.wait(timeout=PATIENCE, progress=False)
    spent = [cost(run) for run in group]
    assert 0.75 < sum(spent) < 1 + 3 * 0.1, spent
    assert {run.view.failures.first.type for run in group} == {"OverBudget"}
    again = fsdl_dev.launch(
        "trial.py", folder=root, on="test", gpus=0, say=None, each={"lr": [1, 2]}, max_cost="1"
    )
    assert until(lambda: all(run.state == "running" for run in again)), "another array has a pot of its own"
    again.cancel()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_trials_of_a_sweep_share_its_cap(root):
    "No trial begins once it is used up; a sweep that is killed and resumed has what was left."
    asked = {
        "each": {"x": "0.0..1.0"},
        "best": "min:loss",
        "on": "test",
        "gpus": 0,
        "folder": root,
        "say": None,
    }
    sweep = fsdl_dev.launch("trial.py", trials=40, slots=2, max_cost="1.5", **asked)
    until(lambda: len(runs_of(sweep, root)) >= 2)
    until(lambda: sum(map(cost, runs_of(sweep, root))) > 0.5)
    os.kill(events(sweep, "state")[-1]["pid"], signal.SIGKILL)
    sweep.wait(timeout=PATIENCE, progress=False)
    until(
        lambda: (
            all(not Run(run).view.alive for run in runs_of(sweep, root))
            or sum(map(cost, runs_of(sweep, root))) > 1.2
        )
    )
    again = fsdl_dev.launch(resume=sweep.words, folder=root, say=None, trials=40)
    again.wait(timeout=PATIENCE, progress=False)
    trials = runs_of(sweep, root)
    spent = sum(map(cost, trials))
    assert 1.0 < spent < 1.5 + 3 * 0.1, (spent, len(trials), again.logs())
    assert any("No further trial begins" in event["text"] for event in events(again, "note")), again.logs()


def runs_of(sweep: Run, root: Path) -> list[RunDir]:
    "The run directories of a sweep's trials."
    store = find_project(root).store
    return [
        RunDir(store / "runs" / row.id)
        for row in fsdl_dev.runs(tag=f"sweep={sweep.words}", folder=root, limit=None)
    ]


# --- the ledger -------------------------------------------------------------------------------------------------------


def draws(
    ledger: Ledger, amount: float | None, share: Share, *dollars: float, state: str = ""
) -> list[RunDir]:
    "A launch that has reserved, with a run for each amount that was spent."
    drawn = ledger.reserve([(share, amount)])
    record = {"budgets": tuple(vars(draw) for draw in drawn)}
    runs = [made(ledger.store, reading(spent, closed=True), state=state, **record) for spent in dollars]
    ledger.attach(drawn, runs)
    return runs


@pytest.fixture
def ledger(tmp_path) -> Ledger:
    return Ledger(tmp_path / "books" / "ledger.db", tmp_path / "store")


NIGHT = Share(Budget("night", "money", 10.0, "USD"))


def standing(ledger: Ledger, share: Share = NIGHT) -> tuple[float, float]:
    "What is spent and reserved."
    (found,) = ledger.standings([share])
    return round(found.spent, 6), round(found.reserved, 6)


def test_removed_runs_and_a_lost_ledger(ledger):
    "What a removed run has used stays used; a file that is lost, empty or damaged is made again."
    kept, removed = draws(ledger, 6.0, NIGHT, 2.0, 1.0, state="succeeded")
    ledger.settle()
    shutil.rmtree(removed.path)
    drawing = draws(ledger, None, NIGHT, 0.5)[0]
    assert standing(ledger) == (3.5, 0.0)
    shutil.rmtree(drawing.path)  # by hand, while it went on
    assert standing(ledger) == (3.5, 0.0)
    ledger.path.write_bytes(b"")  # a process was killed while it made the file
    assert standing(ledger) == (2.0, 0.0), "those that are left"
    ledger.path.unlink()
    assert standing(ledger) == (2.0, 0.0)
    ledger.path.write_bytes(b"no database at all, but as long as a page of one" * 100)
    said = refused(ledger.standings, [NIGHT])
    assert "is damaged" in said and "mv " in said and str(ledger.path) in said
    subprocess.run(said.partition("fix: ")[2].partition("   (")[0], shell=True, check=True)
    assert standing(ledger) == (2.0, 0.0)


def test_two_stores_of_one_ledger(ledger, tmp_path):
    "Both are read where the file is lost."
    other = Ledger(ledger.path, tmp_path / "another store")
    draws(ledger, 4.0, NIGHT, 1.0, state="failed")
    draws(other, 4.0, NIGHT, 2.0, state="failed")
    assert standing(ledger) == standing(other) == (3.0, 0.0)
    ledger.path.unlink()
    assert standing(other) == (3.0, 0.0)


def test_a_budget_that_counts_something_else_now(ledger):
    "Dollars are not hours: a budget of the same name that counts others begins anew, and its pot, too."
    draws(ledger, None, NIGHT, 7.0)
    for budget in (Budget("night", "money", 10.0, "EUR"), Budget("night", "gpu_hours", 10.0)):
        assert standing(ledger, Share(budget)) == (0.0, 0.0) and Share(budget).key != NIGHT.key
    assert standing(ledger, Share(Budget("night", "money", 8.0, "USD"))) == (7.0, 0.0), (
        "another amount is the same"
    )
    one, two = (
        Share(Budget("a", "money", 1, "USD", of="owner"), "b-c"),
        Share(Budget("a-b", "money", 1, "USD", of="owner"), "c"),
    )
    assert one.key != two.key and Share(NIGHT.budget, "ä b").key != Share(NIGHT.budget, "ä_b").key
    assert len(Share(NIGHT.budget, "x" * 400).key) < 200


def test_money_in_another_currency_than_the_budget(ledger):
    "An engine that charges in another currency does not make a run free."
    run = draws(ledger, 5.0, NIGHT, 4.0, state="succeeded")[0]
    run.writer("observer").write(Accounting(cost=3.5, currency="EUR", elapsed=60.0, source="the engine"))
    assert standing(ledger) == (4.0, 0.0) and cost(run) == 4.0
    late = draws(ledger, 5.0, NIGHT, 1.0, state="succeeded")[0]
    late.writer("observer").write(Accounting(cost=0.5, currency="USD", elapsed=60.0, source="the engine"))
    assert standing(ledger) == (4.5, 0.0), "the engine's own word stands before the meter"


def test_a_reservation_of_a_process_that_lives_is_not_dropped(ledger, monkeypatch):
    "An upload may take longer than ten minutes; what was dropped all the same is there again with its run."
    drawn = ledger.reserve([(NIGHT, 6.0)])
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    assert standing(ledger) == (0.0, 6.0)
    with sqlite3.connect(ledger.path) as base:
        base.execute("delete from entries")
    ledger.attach(drawn, [made(ledger.store, reading(2.0))])
    assert standing(ledger) == (0.0, 6.0)
    gone = ledger.reserve([(NIGHT, 1.0)])
    with sqlite3.connect(ledger.path) as base:
        base.execute("update entries set pid = 4194305 where token = ?", (gone[0].token,))
    assert standing(ledger) == (0.0, 6.0), "that of a process that ended is"


def test_a_sweep_that_goes_on_does_not_take_what_others_have(ledger):
    run = draws(ledger, 8.0, NIGHT, 2.0, state="failed")[0]
    drawn = [Draw(**draw) for draw in run.job().launch.budgets]
    assert standing(ledger) == (2.0, 0.0)
    ledger.reopen([(NIGHT, drawn[0])])
    assert standing(ledger) == (0.0, 8.0), "while its next run is made"
    assert "has 2.00 USD left" in refused(draws, ledger, 7.0, NIGHT)
    ledger.attach(drawn, [made(ledger.store, state="failed")])
    assert standing(ledger) == (2.0, 0.0)
    draws(ledger, 7.0, NIGHT, 7.0, state="succeeded")
    assert "this launch may use 6.00 USD" in refused(ledger.reopen, [(NIGHT, drawn[0])])
    assert standing(ledger) == (9.0, 0.0)


def test_a_disk_that_cannot_be_written(root, tmp_path):
    "A launch of a budget is refused where its ledger cannot be written; others are not."
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("DISK FULL WAS NOT TRIED: mounting a small tmpfs needs root")
    try:
        settings(root, 180, 'night = "1 USD"', ledger=json.dumps(str(small / "ledger.db")))
        (small / "filler").write_bytes(bytes(60_000))
        asked = {"max_cost": "0.5", "budget": "night"}
        said = refused(capped, root, "ends.py", 0, **asked)
        assert "The ledger of the budgets cannot be written" in said and "free some space" in said
        assert capped(root, "ends.py", 0, max_cost="0.5").wait(PATIENCE, progress=False).state == "succeeded"
        (small / "filler").unlink()
        assert capped(root, "ends.py", 0, **asked).wait(PATIENCE, progress=False).state == "succeeded"
        subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
        said = refused(capped, root, "ends.py", 0, **asked)
        assert "cannot be written" in said and "the right to write" in said
    finally:
        subprocess.run(["umount", "-l", str(small)], check=False)


def test_a_launch_that_is_interrupted_gives_back(root, monkeypatch):
    "Ctrl-C between the reservation and the run; and where nothing can be given back, its own reason is said."
    settings(root, 180, 'night = "1 USD"')
    project = find_project(root)

    def interrupted(*ignored, **more):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("fsdl_dev.launcher.submit._make_run", interrupted)
        capped(root, "ends.py", 0, max_cost="0.5", budget="night")
    assert standing(ledger_of(project), Share(Budget("night", "money", 1.0, "USD"))) == (0.0, 0.0)
    assert not list((project.store / "runs").glob("*"))


def test_what_an_ended_launch_had_reserved_is_free_for_one_that_draws(ledger):
    "A run that draws asks the ledger once more before it stops: nobody has settled the other launch yet."
    other = draws(ledger, 9.9, NIGHT, 1.0)[0]
    folder = {"folder": str(ledger.pots / NIGHT.key), "ledger": str(ledger.path)}
    limit = Limit("money", 10.0, "USD", NIGHT.name, pot=NIGHT.name, **folder)
    own = {"limits": tuple(limits_to_json([limit])), "price": price_to_json(Price(Money(180.0, "USD")))}
    run = made(ledger.store, **own)
    meter = run_meter(run, run.writer("worker"), ledger.store)
    assert meter.used_up() is None
    meter.start(1, gpus=False)
    assert meter.first().over < time.monotonic() + 3, "0.10 USD at 180 an hour"
    other.writer("worker").write(State(state="succeeded", reason=""))
    meter.ask_again()
    assert meter.first().over > time.monotonic() + 100
