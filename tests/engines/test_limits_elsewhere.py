"""Caps in money on machines elsewhere: a real Slurm cluster and its requeues, and a machine by SSH."""

import json
import sys
from pathlib import Path

import pytest
from following import events
from hosts import machines, why_no_namespaces
from slurm_lab import SlurmLab
from ssh_lab import opened_lab, told

import fsdl_dev
from fsdl_dev.core.errors import FsdlError
from fsdl_dev.money.ledger import run_used

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
IGNORES = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: time.sleep(0.05)\n"
# dollars that a run at 60 an hour may use past its cap, three seconds
CENTS = 0.05


def cost(run) -> float:
    return run_used(getattr(run, "dir", run), "money", "USD")


@pytest.fixture
def lab(slurm, tmp_path):
    lab = SlurmLab(tmp_path, slurm)
    lab.write("ignores.py", IGNORES)
    own = (lab.folder / "pyproject.toml").read_text()
    budgets = '[tool.fsdl_dev.budgets]\nnight = "5 USD"\n'
    lab.write("pyproject.toml", f"{own}[tool.fsdl_dev.prices]\ncluster = 60\n{budgets}")
    yield lab
    lab.stop_all()


def capped(lab, script: str, **asked):
    run = fsdl_dev.launch(script, folder=lab.folder, on="cluster", gpus=0, say=None, **asked)
    lab.runs += [one.dir for one in (run if asked.get("each") else [run])]
    return run


def test_a_cap_over_the_requeues_of_slurm(lab, slurm):
    "Each life goes on counting where the one before ended; Slurm's own time limit stands behind the cap."
    run = capped(lab, "ignores.py", max_cost="1")
    lab.until(run.dir, lambda: spent_in_events(run) > 0.2)
    slurm.run("scontrol", "requeue", lab.job(run.dir))
    lab.until(run.dir, lambda: len(events(run, "placed")) == 2)
    before = spent_in_events(run)
    last = lab.wait(run.dir)
    assert last["state"] == "failed" and "--max-cost 1" in last["reason"], lab.told(run.dir)
    assert before >= 0.2 and 1 - 2 * CENTS < cost(run) < 1 + CENTS
    assert "#SBATCH --time=11 " in (run.path / "batch.sh").read_text()


def spent_in_events(run) -> float:
    return max((event["cost"] for event in events(run, "meter")), default=0.0)


def test_what_a_budget_reserves_for_slurm(lab):
    "What a launch may cost there is reserved before sbatch, and what it did not use comes back."
    with pytest.raises(FsdlError, match="nothing limits this launch there"):
        capped(lab, "ignores.py", budget="night")
    with pytest.raises(FsdlError, match="has 5.00 USD left of 5.00 USD, and this launch may use 6.00 USD"):
        capped(lab, "ignores.py", budget="night", max_cost="6")
    group = capped(lab, "ignores.py", budget="night", max_cost="1", each={"x": [1, 2]})
    for run in group:
        lab.wait(run.dir)
    spent = [cost(run) for run in group]
    assert 1 - 3 * CENTS < sum(spent) < 1 + 2 * CENTS, "the machines see what the others use"
    assert {run.view.failures.first.type for run in group} == {"OverBudget"}


@pytest.mark.skipif(bool(why_no_namespaces()), reason=f"needs a machine of its own: {why_no_namespaces()}")
@pytest.mark.skipif(sys.platform != "linux" or not Path("/usr/sbin/sshd").exists(), reason="needs an sshd")
def test_a_cap_on_a_machine_by_ssh(tmp_path_factory, tmp_path, monkeypatch):
    "Its clock is an hour ahead."
    options = {"box": {"clock": 3600}}
    with (
        machines(tmp_path_factory.mktemp("net"), ["box"], **options) as net,
        opened_lab(tmp_path, net, monkeypatch) as lab,
    ):
        text = (lab.folder / "pyproject.toml").read_text()
        (lab.folder / "pyproject.toml").write_text(f"{text}[tool.fsdl_dev.prices]\nbox = 60\n")
        waits = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
        run = lab.launch(waits + "while True: signal.sigtimedwait([], 0.05)\n", max_cost="0.6")
        run.wait(300, progress=False)
        assert run.state == "failed" and run.view.failures.first.type == "OverBudget", told(run)
        assert 0.6 - 2 * CENTS < cost(run) < 0.6 + CENTS, told(run)
        (limit,) = [limit for event in events(run, "meter")[-1:] for limit in event["limits"]]
        assert limit["used"] == pytest.approx(cost(run), abs=0.01)
        assert json.loads((lab.far(run, "job.json")).read_text())["launch"]["limits"][0]["amount"] == 0.6


@pytest.mark.skipif(bool(why_no_namespaces()), reason=f"needs a machine of its own: {why_no_namespaces()}")
@pytest.mark.skipif(sys.platform != "linux" or not Path("/usr/sbin/sshd").exists(), reason="needs an sshd")
@pytest.mark.parametrize("deaf", [False, True], ids=["stops at SIGTERM", "ignores SIGTERM"])
def test_a_cap_over_two_hosts(tmp_path_factory, tmp_path, monkeypatch, deaf):
    "The processes of both use it, and both have ended when it is reached."
    with (
        machines(tmp_path_factory.mktemp("net"), ["gpu1", "gpu2"]) as net,
        opened_lab(tmp_path, net, monkeypatch, hosts=["gpu1", "gpu2"], grace_seconds=2) as lab,
    ):
        text = (lab.folder / "pyproject.toml").read_text()
        (lab.folder / "pyproject.toml").write_text(f"{text}[tool.fsdl_dev.prices]\nbox = 60\n")
        run = lab.launch(
            IGNORES if deaf else "import time\nwhile True: time.sleep(0.05)\n", nodes=2, max_cost="1"
        )
        run.wait(300, progress=False)
        assert run.state == "failed" and run.view.failures.first.type == "OverBudget", told(run)
        (*_, last) = events(run, "meter")
        assert last["closed"] and last["slots"] == 2
        assert 1 - 4 * CENTS < cost(run) < 1 + 2 * CENTS, told(run)
        left = "pgrep -f '[t]rain.py' || true"
        assert not any(net[name].inside(shell=left, check=False).strip() for name in net.hosts)
