"""The limit of idleness, with real launches side by side: what does nothing is ended, and nothing else is.

How a run ended is asserted, and why, as its own events say it; never how long anything took.
"""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import nbformat
import pytest
from following import events

from fsdl_dev.core.event_kinds import Checkpoint
from fsdl_dev.core.fold.idle import find_idleness
from fsdl_dev.core.rundir import RunDir
from fsdl_dev.records.checkpoints import verify_checkpoint
from fsdl_dev.records.run import Run
from fsdl_dev.records.search.store import RunStore

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]
FSDL = [sys.executable, "-c", "import sys; from fsdl_dev.cli.main import main; sys.argv[0] = 'fsdl'; main()"]
IDLE = 80  # the exit status of a run that was ended because it did nothing
SECONDS = 75  # that the jobs last which are to end by themselves: the limit is 20

SCRIPTS = {
    # does nothing at all
    "sleeps.py": "import time\ntime.sleep(600)\n",
    # the work is done elsewhere: steps come, and nothing is computed here
    "remote.py": """
        import time
        for step in range({seconds}):
            time.sleep(1)
            print('{{"step": %d, "loss": 1.0}}' % step, flush=True)
    """,
    # a slow download: nearly no processor time
    "downloads.py": """
        import time
        with open("part.bin", "wb") as file:
            for _ in range({seconds}):
                file.write(b"x" * 150_000)
                file.flush()
                time.sleep(1)
    """,
    # a person holds it by a debugger: SIGSTOP, and SIGCONT after a while by a process that is not below it
    "held.py": """
        import os, signal, subprocess
        subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT {{os.getpid()}}"])
        os.kill(os.getpid(), signal.SIGSTOP)
    """,
    # one rank does nothing while the other makes steps, and saves when it is told to stop
    "lazy.py": """
        import os, pathlib, signal, sys, time
        rank = int(os.environ["RANK"])
        def save(*ignored):
            pathlib.Path(os.environ["FSDL_RUN_DIR"], "checkpoints", f"saved-{{rank}}.txt").write_text("whole")
            sys.exit(143)
        signal.signal(signal.SIGTERM, save)
        step = 0
        while True:
            if rank:
                time.sleep(1)
            else:
                sum(number * number for number in range(300_000))
                step += 1
                print('{{"step": %d, "loss": 1.0}}' % step, flush=True)
    """,
    # one rank waits while the other prepares: no steps yet
    "prepares.py": """
        import os, time
        end = time.monotonic() + {seconds}
        while time.monotonic() < end:
            if int(os.environ["RANK"]):
                time.sleep(1)
            else:
                sum(number * number for number in range(300_000))
    """,
    # a Trainer whose data do not come any more
    "starves.py": """
        import time
        import pytorch_lightning as pl, torch
        from torch.utils.data import DataLoader, Dataset
        import fsdl_dev
        from fsdl_dev.train.checkpoints.one_file import RunCheckpoint

        class Starving(Dataset):
            def __len__(self):
                return 10_000
            def __getitem__(self, at):
                if at >= 400:
                    time.sleep(600)
                return torch.ones(8)

        class Net(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(8, 1)
            def training_step(self, batch, index):
                return self.layer(batch).square().mean()
            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), 1e-2)

        trainer = fsdl_dev.Trainer(
            max_steps=10_000, accelerator="cpu", enable_model_summary=False, enable_progress_bar=False,
            callbacks=[RunCheckpoint(every_n_train_steps=10)],
        )
        trainer.fit(Net(), DataLoader(Starving(), 16))
    """,
}


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    "A project whose runs may do nothing for 20 s."
    folder = tmp_path_factory.mktemp("idle") / "prøject"
    folder.mkdir()
    own = '[tool.fsdl_dev]\ngrace_seconds = 6\nlimits.idle = "20s"\nprices.local = 2\n'
    (folder / "pyproject.toml").write_text(f'[project]\nname = "idle"\nversion = "0"\n{own}')
    for name, text in SCRIPTS.items():
        (folder / name).write_text(textwrap.dedent(text.format(seconds=SECONDS) if "{" in text else text))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("import time\ntime.sleep(600)")])
    nbformat.write(notebook, folder / "forgotten.ipynb")
    return folder


@pytest.fixture(scope="module")
def ended(project) -> dict[str, tuple[int, RunDir, str]]:
    "Each launch with its exit status, its run and what it printed; all of them at once."
    asked = {
        "sleeps": ["sleeps.py"],
        "never": ["sleeps.py", "--max-idle", "never", "--time", f"{SECONDS}s"],
        "remote": ["remote.py"],
        "downloads": ["downloads.py"],
        "held": ["held.py"],
        "lazy": ["lazy.py", "--procs", "2"],
        "prepares": ["prepares.py", "--procs", "2"],
        "starves": ["starves.py"],
        "notebook": ["forgotten.ipynb"],
    }
    environment = {**os.environ, "FSDL_SLOTS": "16", "IN_TEST": "", "FSDL_STATE": str(project / "state")}
    environment.pop("IN_TEST")
    launches = {
        name: subprocess.Popen(
            [*FSDL, "launch", *words, "--json"], cwd=project, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for name, words in asked.items()
    }  # fmt: skip
    printed = {name: launch.communicate(timeout=900)[0] for name, launch in launches.items()}
    found = {}
    for name, launch in launches.items():
        words = printed[name].partition('"words": "')[2].partition('"')[0]
        (path,) = (project / ".fsdl" / "runs").glob(f"*-{words}") if words else [None]
        assert path, printed[name]
        found[name] = (launch.returncode, RunDir(path), printed[name])
    return found


@pytest.mark.parametrize("name", ["remote", "downloads", "held", "prepares"])
def test_what_works_or_waits_is_not_ended(ended, name):
    status, run, printed = ended[name]
    assert status == 0, printed
    assert run.state() == "succeeded", run.last_state()


def test_never_lets_a_run_sleep_until_its_time_is_over(ended):
    status, run, printed = ended["never"]
    assert status == 128 + 15, printed
    assert "time limit" in run.last_state()["reason"]


def test_what_does_nothing_is_ended_with_its_rank(ended):
    status, run, printed = ended["sleeps"]
    assert status == IDLE, printed
    reason = run.last_state()["reason"]
    assert "20 s without work ([tool.fsdl_dev.limits] idle) is reached: rank 0 did nothing" in reason
    assert "no step was ever made" in reason
    (failure,) = events(run, "failure")
    assert failure["type"] == "Idle" and "--max-idle never" in failure["fix"]


def test_a_rank_that_does_nothing_beside_one_that_steps_ends_the_run_with_a_save(ended):
    status, run, printed = ended["lazy"]
    assert status == IDLE, printed
    assert "rank 1 did nothing" in run.last_state()["reason"]
    assert "while the others made steps" in run.last_state()["reason"]
    assert (run.checkpoints / "saved-0.txt").read_text() == "whole"


def test_a_trainer_that_starves_is_ended_and_its_checkpoint_is_whole(ended):
    status, run, printed = ended["starves"]
    assert status == IDLE, printed
    assert "the last step, " in run.last_state()["reason"]
    saved = [Checkpoint.from_line(line) for line in events(run, "checkpoint")]
    assert saved, printed
    assert verify_checkpoint(Run(run).last) is None
    assert "--resume" in Run(run).failure.text()


def test_a_forgotten_notebook_is_ended(ended):
    status, run, printed = ended["notebook"]
    assert status == IDLE, printed
    assert run.job().kind == "notebook"


def test_the_index_knows_what_idled_and_why(ended, project):
    used = {use.id: use for use in RunStore(project / ".fsdl").device_use(0.0)}
    assert {run.id for _, run, _ in ended.values()} <= used.keys()
    prepared = used[ended["prepares"][1].id]
    assert prepared.devices == 2 and prepared.cause == "rank" and "rank 1" in prepared.words.lower()
    assert prepared.saved > 0 and prepared.cost > 0 and prepared.currency == "USD"


def test_the_card_says_it(ended):
    view = Run(ended["prepares"][1]).refresh()
    found = find_idleness(view.use, view.speed, view.cost.meter, alive=False)
    assert found.cause == "rank" and found.devices == ("1",)
    sizes = [len(json.dumps(line)) for line in events(ended["prepares"][1], "resource")]
    assert max(sizes) < 300, "looks come every two seconds and stay small"
