"""Caps in money and GPU hours, with real launches at a price at which a dollar is soon spent.

The money is what is asserted here: what a run used, as its own events say it, never how long anything took.
"""

import json
import os
import random
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
from fsdl_dev.core.errors import FsdlError
from fsdl_dev.core.event_kinds import Accounting, Checkpoint, Meter, State
from fsdl_dev.core.fold.life import UNSEEN_SECONDS, Cost
from fsdl_dev.core.job import Job, LaunchRecord
from fsdl_dev.core.rundir import RunDir, create_run_dir
from fsdl_dev.core.settings import find_project
from fsdl_dev.launcher.limits import ledger_of
from fsdl_dev.money.budgets import Budget, Share
from fsdl_dev.money.ledger import Draw, Ledger, run_used
from fsdl_dev.money.limits import Limit, limits_to_json, price_to_json
from fsdl_dev.money.meter import Pot, run_meter, spent_by
from fsdl_dev.money.price import Price
from fsdl_dev.core.units import Money
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
    every = {"callbacks": [fsdl_dev.RunCheckpoint(every_n_train_steps=150)]} if float(sys.argv[2]) else {}
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
    import sys, time, fsdl_dev
    for step in range(1000):
        time.sleep(0.05)
        fsdl_dev.log({"loss": 1 / (step + 1)}, step=step)
"""


@pytest.fixture
def root(make_project, tmp_path, monkeypatch):
    monkeypatch.setenv("FSDL_SLOTS", "16")
    root = make_project(nbdev=0, notebooks={}, folder=tmp_path / "caps é", git=False)
    scripts = {"trainer": TRAINER, "hugging": HUGGING_FACE, "ignores": IGNORES, "saves": SAVES, "trial": TRIAL}
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
    *_, newest = sorted((runs["hugging"].path / "checkpoints" / "hf").glob("checkpoint-*"), key=os.path.getmtime)
    transformers = pytest.importorskip("transformers")
    assert transformers.GPT2LMHeadModel.from_pretrained(newest).config.n_embd == 16
