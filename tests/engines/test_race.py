"""One launch to several real targets: machines behind SSH, this machine, a Slurm cluster. Exactly one begins."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from following import until
from hosts import machines
from slurm_lab import sbatch
from ssh_lab import UNTIL, opened_lab

import fsdl_dev
from fsdl_dev.core.errors import FsdlError
from fsdl_dev.core.states import FINAL
from fsdl_dev.engines.race import BEGAN, READY, turn_state
from fsdl_dev.records.find import load_run
from fsdl_dev.records.group import Race as Races
from fsdl_dev.worker.job.turn import Race

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform != "linux" or not Path("/usr/sbin/sshd").exists(), reason="needs Linux with an sshd"
    ),
]
COUNT = 'import pathlib, sys\nwith open(sys.argv[1], "a") as file: file.write("began\\n")\nprint("code", flush=True)\n'


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    with machines(tmp_path_factory.mktemp("net"), ["box", "box2"]) as net:
        yield net


@pytest.fixture
def lab(net, tmp_path, monkeypatch):
    monkeypatch.setenv("FSDL_STATE", str(tmp_path / "state"))  # slots of this machine that no other test has
    monkeypatch.setenv("FSDL_SLOTS", "1")
    with opened_lab(tmp_path, net, monkeypatch) as lab:
        settings = lab.folder / "pyproject.toml"
        box = settings.read_text()
        settings.write_text(
            box + box.replace("targets.box]", "targets.box2]").replace('host = "box"', 'host = "box2"')
        )
        monkeypatch.chdir(lab.folder)
        yield lab


def launched(lab, on: str, text: str = COUNT, *args: str):
    lab.file("race.py", text)
    race = fsdl_dev.launch("race.py", args=list(args), on=on, gpus=0, folder=lab.folder, say=None)
    lab.runs += race
    return race


@contextmanager
def occupied(lab, on: str, tmp_path: Path):
    "A target whose places are taken during the block."
    stop, cores = tmp_path / f"free {on}", 1 if on == "local" else os.cpu_count() or 1
    far = f"/var/tmp/free-{on}" if on != "local" and lab.net.real else stop
    run = lab.launch(UNTIL, far, name="until.py", on=on, procs=cores)
    until(lambda: run.view.state == "running", lambda: f"{run.view.state}: {run.view.reason}")
    try:
        yield
    finally:
        lab.net[on].ssh(f"touch {far}") if on != "local" else stop.touch()
        run.wait(120, progress=False)
        if on != "local":
            lab.net[on].ssh(f"rm -f {far}")


def settled(race) -> dict[str, tuple[str, str]]:
    "Each target's state and reason, once all have ended."
    until(lambda: all(not run.view.alive for run in race), lambda: str([run.view.reason for run in race]))
    return {run.job.launch.target: (run.state, run.view.reason) for run in race}


def test_the_first_that_is_named_has_a_place(lab, tmp_path):
    "The keeper behind SSH begins by itself; the run here is withdrawn and says where it started."
    with occupied(lab, "local", tmp_path):
        race = launched(lab, "box,local", COUNT, "/dev/null")
        assert isinstance(race, Races) and race.wait(120, progress=False).state == "succeeded"
        assert race.one.job.launch.target == "box" and "code" in race.logs()
        assert settled(race)["local"] == ("cancelled", "started on box")
    withdrawn = next(run for run in race if run.job.launch.target == "local")
    assert load_run(withdrawn.words).id == race.one.id  # its name leads to the run that began
    assert any("Launched to box" in note["text"] for note in race.one.events if note["kind"] == "note")


@pytest.mark.parametrize("on, busy", [("box,local", "box"), ("local,box", "local"), ("box,box2", "box")])
def test_the_turn_is_handed_to_a_target_elsewhere(lab, tmp_path, on, busy):
    "Without a common file system the launcher claims the turn on the keeper's machine, and says go."
    (other,) = {*on.split(",")} - {busy}
    with occupied(lab, busy, tmp_path):
        race = launched(lab, on, COUNT, "/dev/null")
        assert race.wait(120, progress=False).one.job.launch.target == other
        assert settled(race) == {
            other: ("succeeded", race.one.view.reason),
            busy: ("cancelled", f"started on {other}"),
        }


def umpire_of(race) -> int:
    "The process that gives the turn."
    keeper = str(race[0].path)
    found = subprocess.run(
        ["pgrep", "-f", f"fsdl_dev.engines.race {keeper}$"], capture_output=True, text=True
    )
    return int(found.stdout.split()[0])


def test_with_the_launcher_gone_the_first_target_goes_on_alone(lab, tmp_path, monkeypatch):
    "A run elsewhere that hears nothing gives its place back, and never begins; the keeper does not need the launcher."
    monkeypatch.setattr("fsdl_dev.sweep.race.Race", partial(Race, seconds=5.0))
    monkeypatch.setattr("fsdl_dev.sweep.race.ensure_umpire", lambda run: None)
    monkeypatch.setattr("fsdl_dev.records.group.ensure_umpire", lambda run: None)
    with occupied(lab, "box", tmp_path):
        race = launched(lab, "box,box2", COUNT, "/dev/null")
        elsewhere = race[1]
        until(lambda: not elsewhere.view.alive, lambda: elsewhere.view.reason)
        assert elsewhere.state == "cancelled" and "no word came from the launcher" in elsewhere.view.reason
        assert race[0].state == "queued"
    assert race[0].wait(120, progress=False).state == "succeeded" and race.one.id == race[0].id


def test_a_killed_launcher_process_is_followed_by_another(lab, tmp_path):
    "It is killed while a run elsewhere is about to get its place; a look at the run starts the next one."
    with occupied(lab, "box", tmp_path):
        with occupied(lab, "box2", tmp_path):
            race = launched(lab, "box,box2", COUNT, "/dev/null")
            os.kill(umpire_of(race), signal.SIGKILL)
        until(lambda: (race[1].view, turn_state(race[1].dir))[1] == READY, lambda: race[1].view.reason)
        assert load_run(race[0].words).id == race[0].id  # as fsdl show does
        until(lambda: (race[1].view, turn_state(race[1].dir))[1] == BEGAN, lambda: race[1].view.reason)
        assert race.wait(120, progress=False).one.job.launch.target == "box2"
        assert settled(race)["box"][0] == "cancelled"


def test_cancel_takes_all_of_them(lab, tmp_path):
    from click.testing import CliRunner

    from fsdl_dev.cli.main import main

    with occupied(lab, "box", tmp_path), occupied(lab, "local", tmp_path):
        race = launched(lab, "box,local", COUNT, "/dev/null")
        said = CliRunner().invoke(main, ["cancel", race[1].words])
        assert said.exit_code == 0, said.output
        assert all(run.state == "cancelled" for run in race)
    time.sleep(4)
    assert (
        race.one.state == "cancelled" and len(list(race[0].path.parent.glob("*"))) == 4
    )  # nothing was launched again


def test_a_target_that_refuses_is_left_out_unless_all_refuse(lab, tmp_path, monkeypatch):
    lab.file("race.py", COUNT)
    said = []
    race = fsdl_dev.launch(
        "race.py", args=["/dev/null"], on="nosuch,box", gpus=0, folder=lab.folder, say=said.append
    )
    lab.runs += race
    assert [run.job.launch.target for run in race] == ["box"] and "nosuch is left out" in said[0]
    assert race.wait(120, progress=False).state == "succeeded"
    with pytest.raises(
        FsdlError, match="No target takes the launch. nosuch: .*; |No target|There is no target"
    ):
        fsdl_dev.launch("race.py", on="nosuch,neither", folder=lab.folder, say=None)
    with pytest.raises(FsdlError, match="A sweep goes to one target"):
        fsdl_dev.launch("race.py", on="box,local", each={"lr": [1, 2]}, folder=lab.folder, say=None)
    with pytest.raises(FsdlError, match="named twice"):
        fsdl_dev.launch("race.py", on="box,box", folder=lab.folder, say=None)


def test_slurm_and_this_machine_begin_once_each_time(lab, slurm, tmp_path):
    "Both see the token, and get their places at nearly the same moment, eight times."
    chance, settings = random.Random(7), lab.folder / "pyproject.toml"
    slurm_table = '\n[tool.fsdl_dev.targets.cluster]\nkind = "slurm"\naccount = "lab"\ntime = "10m"\n'
    settings.write_text(settings.read_text() + slurm_table)
    places = []
    for number in range(8):
        began = tmp_path / f"began{number}"
        order = chance.sample(["cluster", "local"], 2)
        hold = (
            sbatch("--account=lab", "--nodes=4", "--exclusive", "--time=5", script="sleep 600")
            if number % 2
            else ""
        )
        race = launched(lab, ",".join(order), COUNT, str(began))
        if hold:
            time.sleep(chance.random())
            slurm.run("scancel", hold)
        assert race.wait(120, progress=False).state == "succeeded"
        told = settled(race)
        assert began.read_text() == "began\n", (number, told)
        assert sorted(state for state, _ in told.values()) == ["cancelled", "succeeded"], told
        places.append(race.one.job.launch.target)
    assert places
    assert all(run.state in FINAL for run in lab.runs)
