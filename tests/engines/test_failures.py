"""Processes that fail while they train: killed, hung, told to stop; what is started again and where it goes on."""

import os
import signal
import sys

import psutil
import pytest
import torch
from following import events, until
from killing import JOB, kill, log, none_left, project, start, step_of  # noqa: F401  a fixture
from ranks import run_ranks
from test_worker_engine import Place

from fsdl_dev.core.manifest import require_whole

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]


@pytest.fixture
def root(make_project, tmp_path):
    return project(make_project, tmp_path / "project")


def ended(run, state: str) -> None:
    run.wait(timeout=600, progress=False)
    assert run.state == state, log(run)


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.long), 1, "agent"])
def test_a_killed_rank_or_agent_costs_seconds_and_the_training_goes_on(root, rank):
    run = start(root, 60, 0.1, 5, "lingers 14")
    until(lambda: step_of(run) >= 12 and list(run.dir.checkpoints.glob("*.ckpt")), lambda: log(run))
    if rank == "agent":
        os.kill(psutil.Process(int((run.path / "pid1").read_text())).ppid(), signal.SIGKILL)
    else:
        kill(run, rank)
    (run.path / "enough").touch()
    ended(run, "succeeded")
    (restart,) = events(run, "restart")
    who = "the parent of the ranks" if rank == "agent" else f"rank {rank}"
    assert restart["reason"].startswith(f"{who} was ended by SIGKILL (restart 1 of 3")
    assert restart.get("failed_rank") == (None if rank == "agent" else rank)
    assert restart["from_step"] is None or restart["from_step"] >= 5
    steps = [
        event["step"] for event in events(run, "progress") if event["rank"] == 0 and event["t"] > restart["t"]
    ]
    assert steps[0] >= 5 and steps[-1] == 60, steps
    assert (
        events(run, "state")[-1]["state"] == "succeeded" and "SIGKILL" in run.view.restarts.events[0].reason
    )
    assert "finished at 60" in run.dir.log(0).read_text()


@pytest.mark.tier("long", "skips*", "stopped*")
@pytest.mark.parametrize(
    ("mode", "straggler", "said"),
    [
        ("sleeps", 1, "time.sleep(1000)"),
        ("stopped", 1, "does not answer"),
        ("skips", None, "so one of them skipped one: rank 0 in barrier"),
    ],
)
def test_a_hang_is_noticed_explained_and_started_again(root, monkeypatch, mode, straggler, said):
    monkeypatch.setenv("FSDL_HANG_SECONDS", "15")  # a busy machine alone may stand still for some seconds
    run = start(root, 20, 0.05, 4, mode)
    ended(run, "succeeded")
    failure = next(event for event in events(run, "failure") if event["type"] == "Hang")
    (restart,) = events(run, "restart")
    assert (
        failure["straggler"] == straggler == restart["failed_rank"]
        and said in failure["message"]
        and said in restart["reason"]
    ), failure
    stacks = {
        rank: (run.dir.logs / f"stacks-rank{rank}.txt").read_text()
        for rank in (0, 1)
        if mode != "stopped" or rank == 0
    }
    assert all("train.py" in text and "Thread" in text for text in stacks.values())
    assert "finished at 20" in run.dir.log(0).read_text()


@pytest.mark.tier("long")
def test_the_same_hang_twice_is_not_started_a_third_time(root, monkeypatch):
    """It hangs at step 6 again, after other seconds and fewer collectives, since it began at a checkpoint: the
    same, though the budget has two restarts left.
    """
    monkeypatch.delenv("FSDL_HANG_SECONDS", raising=False)
    job = JOB.replace('if attempt == "0" and module.global_step == 6', "if module.global_step == 6")
    (root / "train.py").write_text(
        job.replace(
            "callbacks=[",
            "callbacks=[__import__('fsdl_dev.train.guards.hang').train.guards.hang.HangWatch(15 if attempt =="
            " '0' else 20), ",
        )
    )
    run = start(root, 20, 0.05, 4, "sleeps")
    ended(run, "failed")
    (restart,) = events(run, "restart")
    assert restart["from_step"] == 4 and [
        event["straggler"] for event in events(run, "failure") if event["type"] == "Hang"
    ] == [1, 1], log(run)
    assert any(
        "it is not started again: the same happened at the same step before" in event["text"]
        for event in events(run, "note")
    ), events(run, "note")


@pytest.mark.tier("long")
def test_a_restart_goes_on_from_a_checkpoint_in_a_bucket(root, bucket, tmp_path):
    """Nothing is in the run's own folder: the launcher knows from the event log where its checkpoints lie."""
    place = f"s3://runs/{root.parent.name}"
    (root / "train.py").write_text(
        JOB.replace(
            "RunCheckpoint(",
            f"__import__('fsdl_dev.train.checkpoints.folder').train.checkpoints.folder.FolderCheckpoint('{place}', ",
        )
    )
    run = start(root, 30, 0.1, 5, "lingers 14")
    until(lambda: step_of(run) >= 12 and events(run, "checkpoint"), lambda: log(run))
    kill(run, 1)
    (run.path / "enough").touch()
    ended(run, "succeeded")
    (restart,) = events(run, "restart")
    assert events(run, "checkpoint")[0]["path"].startswith(f"{place}/step") and not list(
        run.dir.checkpoints.glob("*")
    )
    steps = [
        event["step"] for event in events(run, "progress") if event["rank"] == 0 and event["t"] > restart["t"]
    ]
    assert restart["from_step"] >= 5 and steps[0] >= restart["from_step"] and steps[-1] == 30, (
        restart,
        steps,
    )
    assert "finished at 30" in run.dir.log(0).read_text()

    # what a person does next: look, copy, load, go on
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(
                torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1)
            )

    assert str(run.last.path) == f"{place}/{run.last.name}" and run.last.exists and run.last.step == 30
    weights = torch.load(run.path / "weights.pt", weights_only=True)
    assert all(
        torch.equal(tensor, weights[name]) for name, tensor in run.load("last", cls=Net).state_dict().items()
    )
    assert (
        run.last.name in {path.name for path in run.fetch(tmp_path / "copied")}
        and require_whole(tmp_path / "copied" / run.last.name) is None
    )
    longer = start(root, 34, 0.1, 5, "", resume=run.words)
    ended(longer, "succeeded")
    assert [event["step"] for event in events(longer, "progress") if event["rank"] == 0][
        0
    ] >= 30 and "finished at 34" in longer.dir.log(0).read_text()


def test_a_bug_is_a_failure_at_once(root):
    run = start(root, 20, 0.05, 4, "bug")
    ended(run, "failed")
    assert not events(run, "restart") and "a bug in rank one" in run.failure.text()


@pytest.mark.tier("long")
def test_a_lone_process_is_started_again_where_that_was_asked_for(root):
    run = start(root, 100_000, 0.1, 5, procs=1, max_restarts=1)
    for attempt in (1, 2):
        since = restarts[-1]["t"] if (restarts := events(run, "restart")) else 0.0
        until(
            lambda since=since: len([event for event in events(run, "progress") if event["t"] > since]) > 2,
            lambda: log(run),
        )
        kill(run, 0)
        until(
            lambda attempt=attempt: run.state == "failed" or len(events(run, "restart")) == attempt,
            lambda: log(run),
        )
    ended(run, "failed")
    assert len(events(run, "restart")) == 1 and any(
        "--max-restarts" in event["text"] for event in events(run, "note")
    )
    assert "SIGKILL" in run.failure.text()


def test_sigusr1_saves_and_the_training_goes_on(root):
    run = start(root, 60, 0.1, 1000, "lingers 14")
    until(lambda: step_of(run) >= 5, lambda: log(run))
    kill(run, 1, signal.SIGUSR1)
    until(lambda: events(run, "checkpoint"), lambda: log(run))
    assert 5 <= events(run, "checkpoint")[0]["step"] < 60 and run.state == "running"
    (run.path / "enough").touch()
    ended(run, "succeeded")
    assert not events(run, "restart")


def _told_in_the_last_step(folder: str) -> tuple:
    """One rank's part: four steps, and in the last of them SIGTERM for rank 1 alone.

    How it left, whether it went on with what follows, its step.
    """
    import pytorch_lightning as pl

    from fsdl_dev.train.trainer import Trainer

    class Net(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch, index):
            if index == 3 and os.environ["RANK"] == "1":
                os.kill(os.getpid(), signal.SIGTERM)
            return self.layer(batch[0]).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    os.environ["FSDL_RUN_DIR"] = folder
    trainer = Trainer(max_epochs=1, accelerator="cpu", enable_model_summary=False)
    try:
        trainer.fit(Net(), torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(16, 4)), 2))
    except SystemExit as left:
        return left.code, False, trainer.global_step
    return 0, True, trainer.global_step


def test_sigterm_for_one_rank_in_the_last_step_ends_all_alike(tmp_path):
    """Status 143 in both, the last step saved: neither goes on with what follows, where it would wait for the other."""
    assert run_ranks(_told_in_the_last_step, 2, str(tmp_path)) == [(143, False, 4)] * 2
    require_whole(tmp_path / "checkpoints" / "last.ckpt")
    assert torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)["global_step"] == 4


def test_sigterm_in_a_validation_is_heard_and_the_run_goes_on_from_there(root, monkeypatch):
    monkeypatch.setenv("SLOW_VALIDATION", "1.0")  # 128 batches each: two minutes, more than the grace
    run = start(root, 12, 0.01, 1000)
    validated = [run.path / f"validated{rank}" for rank in (0, 1)]
    until(
        lambda: (
            any(event["stage"] == "validate" for event in events(run, "progress"))
            and all(file.stat().st_size > 3 for file in validated)
        ),
        lambda: log(run),
    )  # two may be of the sanity check
    run.cancel()
    ended(run, "cancelled")
    assert all(file.stat().st_size < 128 for file in validated), "it did not wait for the validation's end"
    saved = torch.load(run.dir.checkpoints / "last.ckpt", weights_only=True)
    assert saved["global_step"] == 8 and not events(run, "failure")
    monkeypatch.setenv("SLOW_VALIDATION", "0.001")
    again = start(root, 12, 0.01, 1000, resume=run.id)
    ended(again, "succeeded")
    assert "finished at 12" in again.dir.log(0).read_text() and events(again, "progress")[0]["step"] == 8


@pytest.mark.tier("long", "rank", "node")
@pytest.mark.parametrize("how", ["node", "rank"])
def test_a_lost_node_or_rank_costs_the_steps_since_the_last_checkpoint(slurm, tmp_path, how):
    """Two nodes of a real Slurm cluster train together; one loses its power, or its process; Slurm queues the
    run again, and it goes on from its checkpoint.
    """
    place = Place(tmp_path, slurm)
    run = place.submit("import sys\nsys.argv[1:] = ['60', '0.1', '5', 'lingers 14']\n" + JOB, nodes=2)
    place.until(run, lambda: step_of(run) >= 12 and (run.checkpoints / "last.ckpt").exists())
    node = events(run, "placed")[0]["nodes"][1]
    slurm.kill_node(node) if how == "node" else os.kill(int((run.path / "pid1").read_text()), signal.SIGKILL)
    (run.path / "enough").touch()
    place.until(run, lambda: len(events(run, "placed")) == 2 or run.state() == "failed")
    assert place.wait(run) == "succeeded", run.worker_log.read_text() + place.log(run)
    (restart,) = events(run, "restart")
    steps = [
        event["step"] for event in events(run, "progress") if event["rank"] == 0 and event["t"] > restart["t"]
    ]
    assert (
        restart["cause"] == how
        and steps[0] >= 10
        and steps[-1] == 60
        and (how == "rank" or node not in events(run, "placed")[1]["nodes"])
    )
    assert "finished at 60" in place.log(run) and (
        how == "node" or "rank 1 was ended by SIGKILL" in restart["reason"]
    )
