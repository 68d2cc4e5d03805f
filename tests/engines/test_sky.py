"""Clouds by SkyPilot: the task as the real SkyPilot reads it, and the target against a stand-in for its command
line (sky_stand_in.py).
"""

import json
import os
import pty
import shlex
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

import pytest
import yaml
from following import ended_by_one_look, until
from repository import SUPPORT

import fsdl_dev
from fsdl_dev.cards.card import card_text, make_card
from fsdl_dev.cards.journey import say_cost
from fsdl_dev.core.errors import FsdlError
from fsdl_dev.core.events import read_events
from fsdl_dev.core.fold.view import RunView, view_from_text, view_text
from fsdl_dev.core.job import Job, Resources
from fsdl_dev.core.states import FINAL
from fsdl_dev.core.units import Money
from fsdl_dev.engines.contract import EngineContract, contract_project, submit_job, wait_for
from fsdl_dev.engines.kubernetes.fields import object_name
from fsdl_dev.engines.remote.script_parts import to_yaml, uplink_script
from fsdl_dev.engines.sky.client import Offer, SkyCli
from fsdl_dev.engines.sky.look import affordable
from fsdl_dev.engines.sky.script import SkyFields, SkyRun, consented, sky_task
from fsdl_dev.engines.sky.tpu import is_slice
from fsdl_dev.engines.target import get_target
from fsdl_dev.engines.transport.shell import Unreachable

CHOICES = [
    {
        "storage": "s3://bucket/fsdl",
        "accelerator": "H100",
        "infra": ("aws", "gcp/us-central1", "lambda"),
        "spot": True,
        "labels": {"team": "a"},
    },
    {
        "storage": "gs://bucket/fsdl",
        "accelerator": "L4",
        "infra": ("gcp",),
        "image": "registry.example/team/train:v1",
        "cpus": "8+",
        "memory": "64+",
        "disk_size": 512,
        "env": {"A": "1"},
    },
    {"storage": "s3://bucket/fsdl", "instance_type": "p4d.24xlarge", "infra": ("aws/us-east-1",)},
    {"storage": "s3://bucket"},
    {"storage": "s3://bucket/fsdl", "accelerator": "H100", "infra": ("aws", "lambda"), "max_price": 120.0},
    {
        "storage": "gs://bucket/fsdl",
        "accelerator": "tpu-v5litepod-8",
        "accelerator_args": {"runtime_version": "v2-alpha-tpuv5-lite"},
        "infra": ("gcp/us-west4",),
    },
]
CHEAP = (
    {"infra": "lambda/us-east-1", "instance_type": "gpu_8x_h100_sxm5"},
    {"infra": "aws/us-east-1", "instance_type": "p5.48xlarge"},
)  # of the one with max_price


def a_sky(folder: Path) -> Path:
    "The stand-in as a program."
    program = folder / "bin" / "sky"
    program.parent.mkdir(parents=True)
    stand_in = SUPPORT / "sky_stand_in.py"
    program.write_text(
        f"#!/bin/sh\nSKY_STAND_IN={shlex.quote(str(folder / 'state'))} exec {shlex.quote(sys.executable)}"
        f' {shlex.quote(str(stand_in))} "$@"\n'
    )
    program.chmod(0o755)
    return program


def sky_fields(folder: Path, program: Path, **further) -> dict:
    "A target on the stand-in."
    (folder / "bucket").mkdir(exist_ok=True)
    return {
        "kind": "sky",
        "storage": f"file://{folder}/bucket",
        "sky": str(program),
        "environment": "there",
        "python": sys.executable,
        "accepts_sky_changes": True,
        "grace_seconds": 5.0,
        "mount": f"{folder}/mounts/bucket",
        "disk": f"{folder}/disk",
        "managed": True,
        **further,
    }


@pytest.fixture
def rented(tmp_path):
    "A stand-in, and what opens a target on it."
    program = a_sky(tmp_path / "sky")

    def open_target(**further):
        project = contract_project(tmp_path / "prøject", "cloud", sky_fields(tmp_path, program, **further))
        target = get_target("cloud", project)
        target.is_test = True
        return target, project

    yield open_target
    end_all(tmp_path / "sky" / "state")


def end_all(folder: Path) -> None:
    "End the machines that a test has left."
    path = folder / "state.json"
    for pid in (
        [pid for job in json.loads(path.read_text())["jobs"] for pid in job["pids"]] if path.exists() else []
    ):
        try:
            os.killpg(pid, 9)
        except OSError:
            pass


# ---- the task


_HEAD = (
    "InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,"
    "Price,SpotPrice,Region,AvailabilityZone\n"
)
_GPU = "\"{'Gpus': [{'MemoryInfo': {'SizeInMiB': 81920}}], 'TotalGpuMemoryInMiB': 655360}\""
_CATALOGUES = {
    "aws": (
        f"p5.48xlarge,192,2048,H100,8,{_GPU},55.04,20.5,us-east-1,us-east-1a\np5.48xlarge,192,2048,H100,8,{_GPU},55.04,25.0,us-east-1,us-east-1b\np5.48xlarge,192,2048,H100,8,{_GPU},60.0,,us-west-2,us-west-2a\n"
        f"p4d.24xlarge,96,1152,A100,8,{_GPU},32.8,,us-east-1,us-east-1a\n"
    ),
    "gcp": (
        f"a3-highgpu-8g,208,1872,H100,8,{_GPU},88.0,30.0,us-central1,us-central1-a\ng2-standard-96,96,384,L4,8,{_GPU},8.0,3.0,us-central1,us-central1-a\n,,,tpu-v5litepod-8,1,tpu-v5litepod-8,9.6,4.8,us-west4,us-west4-a\n"
    ),
    "lambda": f"gpu_8x_h100_sxm5,208,1800,H100,8,{_GPU},24.0,,us-east-1,\n",
}


def lay_catalogue(home: Path, real_sky: Path) -> None:
    "Price lists where SkyPilot keeps those that it has fetched."
    version = subprocess.run(
        [real_sky, "-c", "from sky.catalog import constants; print(constants.CATALOG_SCHEMA_VERSION)"],
        capture_output=True,
        text=True,
        timeout=300,
    ).stdout.strip()
    for cloud, rows in _CATALOGUES.items():
        path = home / ".sky" / "catalogs" / version / cloud / "vms.csv"
        path.parent.mkdir(parents=True)
        path.write_text(_HEAD + rows)


@pytest.fixture(scope="session")
def real_sky(tmp_path_factory) -> Path:
    "The real SkyPilot in an environment of its own: its interpreter."
    given = os.environ.get("FSDL_SKY_PYTHON")
    if given:
        return Path(given)
    folder = tmp_path_factory.mktemp("skypilot")
    venv.create(folder, with_pip=True)
    done = subprocess.run(
        [folder / "bin" / "pip", "install", "--quiet", "--no-compile", "skypilot==0.14.1"],
        capture_output=True,
        text=True,
        timeout=900,
    )
    if done.returncode:
        pytest.skip(f"SkyPilot cannot be installed here: {done.stderr.strip()[-200:]}")
    return folder / "bin" / "python"


_READ = """
import json, sys
import sky, yaml

for path in sys.argv[1:]:
    task = sky.Task.from_yaml_config(yaml.safe_load(open(path)))
    for resources in task.resources:
        auto = resources.autostop_config
        print(
            json.dumps(
                [
                    task.name,
                    task.num_nodes,
                    resources.accelerators,
                    resources.use_spot,
                    auto.enabled,
                    auto.down,
                    auto.idle_minutes,
                    sorted(task.storage_mounts) or sorted(task.file_mounts or {}),
                    (resources.job_recovery or {}).get("recover_on_exit_codes"),
                    resources.max_hourly_cost,
                    resources.instance_type,
                    resources.infra.to_str(),
                    resources.accelerator_args,
                ]
            )
        )
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)  # SkyPilot is installed first
def test_the_real_skypilot_reads_the_task(real_sky, tmp_path):
    for number, values in enumerate(CHOICES):
        gpus = 1 if is_slice(values.get("accelerator")) else 8 if values.get("accelerator") else 0
        (tmp_path / f"{number}.yaml").write_text(
            to_yaml(
                sky_task(
                    SkyRun(
                        "20261121-075212345-brave-otter",
                        2,
                        gpus,
                        "/tmp/fsdl_dev/runtimes/a.zip",
                        CHEAP if "max_price" in values else (),
                    ),
                    SkyFields(**values),
                )
            )
        )
    lay_catalogue(tmp_path, real_sky)
    environment = os.environ | {"HOME": str(tmp_path), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    told = subprocess.run(
        [real_sky, "-c", _READ, *map(str, sorted(tmp_path.glob("*.yaml")))],
        capture_output=True,
        text=True,
        timeout=600,
        env=environment,
    )
    assert told.returncode == 0, told.stderr[-3000:]
    rows = [json.loads(line) for line in told.stdout.splitlines()]
    assert len(rows) == 9 and all(
        row[0] == "fsdl-20261121-075212345-brave-otter" and row[1] == 2 for row in rows
    )
    assert all(row[4:7] == [True, True, 5] for row in rows)  # autostop, down, minutes: in every one
    assert all(row[7] == ["/fsdl-storage"] for row in rows)
    assert sorted(row[2]["H100"] for row in rows if row[3]) == [8, 8, 8]
    assert sorted(row[9:12] for row in rows if row[9]) == sorted(
        [60.0, place["instance_type"], place["infra"]] for place in CHEAP
    )
    assert all(
        row[8] == ([85] if row[3] else None) for row in rows
    )  # managed jobs take "queue me again" for what it means
    tpu = next(row for row in rows if "tpu-v5litepod-8" in (row[2] or {}))
    assert tpu[2] == {"tpu-v5litepod-8": 1} and tpu[11:] == [
        "gcp/us-west4",
        {"runtime_version": "v2-alpha-tpuv5-lite"},
    ]


@pytest.mark.tier("long")
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_real_catalogue_gives_prices(real_sky, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    program = tmp_path / "bin" / "sky"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    (tmp_path / "bin" / "python").write_text(f'#!/bin/sh\nexec {shlex.quote(str(real_sky))} "$@"\n')
    (tmp_path / "bin" / "python").chmod(0o755)
    lay_catalogue(tmp_path, real_sky)
    cli = SkyCli(str(program), "here")
    offers = cli.offers("h100", 8, ["aws"])
    assert [(offer.instance_type, offer.price, offer.spot_price, offer.region) for offer in offers] == [
        ("p5.48xlarge", 55.04, 20.5, "us-east-1"),
        ("p5.48xlarge", 60.0, None, "us-west-2"),
    ]
    assert [offer.cloud for offer in cli.offers("H100", 8, ["aws", "lambda"])] == [
        "Lambda",
        "AWS",
        "AWS",
    ]  # the cheapest first
    fields = SkyFields(spot=True, max_price=24.0, accelerator="H100", infra=("aws",))
    spot = cli.offers("H100", 8, ["aws"], spot=True)
    assert spot[0].zones == {"us-east-1a": 20.5, "us-east-1b": 25.0}, spot
    assert affordable(spot, fields, 1) == (
        {"infra": "aws/us-east-1/us-east-1a", "instance_type": "p5.48xlarge"},
    )  # the other zone of the region is dearer
    assert [(offer.cloud, offer.price) for offer in cli.offers("tpu-v5litepod-8", 1, ["gcp"])] == [
        ("GCP", 9.6)
    ]
    with pytest.raises(FsdlError, match="price lists are fetched from the network"):
        cli.offers("H100", 8, ["azure"])  # no list of Azure's is there, and no network


# ---- the target, on the stand-in


def test_dry_run_shows_candidates_and_the_task(rented):
    target, project = rented(accelerator="H100", infra=["aws", "gcp"], spot=True)
    target.engine.cli._offers["H100", 8, True, "aws", "gcp"] = (
        [Offer("AWS", "p5.48xlarge", "us-east-1", 55.0, 20.5)],
        1e18,
    )
    job = Job(kind="script", name="x", script="once.py", resources=Resources(nodes=2, gpus=8))
    text = target.plan(job, project)
    assert (
        "# AWS p5.48xlarge us-east-1: 110.00 USD/h on demand, 41.00 USD/h spot" in text
        and "managed job" in text
    )
    assert target.hourly_price(job) == Money(41.0, "USD")
    task = yaml.safe_load(text)
    assert (
        task["resources"]["accelerators"] == "H100:8"
        and task["resources"]["autostop"]["down"] is True
        and task["num_nodes"] == 2
        and "start.sh" in task["run"]
    )
    cheap, _ = rented(accelerator="H100", infra=["aws", "gcp"], spot=True, max_price=40.0)
    cheap.engine.cli._offers = target.engine.cli._offers
    with pytest.raises(FsdlError, match="41.00 USD an hour") as refused:
        cheap.admit(job, project)
    assert "max_price=41.01" in refused.value.fix


def test_a_tpu_is_one_slice(rented):
    """Its chips are in its name: a count of GPUs would rent as many slices, and the worker would look for GPUs on a
    machine that is paid for by then."""
    values = {"accelerator_args": {"runtime_version": "v2-alpha-tpuv5-lite"}, "infra": ["gcp/us-west4"]}
    target, project = rented(accelerator="tpu-v5litepod-8", **values)
    target.engine.cli._offers["tpu-v5litepod-8", 1, False, "gcp"] = (
        [Offer("GCP", "TPU-VM", "us-west4", 9.6, 4.8)],
        1e18,
    )
    job = Job(kind="script", name="x", script="once.py")
    target.admit(job, project)
    text = target.plan(job, project)
    assert "# GCP TPU-VM us-west4: 9.60 USD/h on demand" in text
    asked = yaml.safe_load(text)["resources"]
    assert asked["accelerators"] == "tpu-v5litepod-8:1" and asked["infra"] == "gcp/us-west4"
    assert asked["accelerator_args"] == {"runtime_version": "v2-alpha-tpuv5-lite"}
    assert target.hourly_price(job) == Money(9.6, "USD")
    for resources in (Resources(gpus=8), Resources(procs=8), Resources(nodes=2)):
        with pytest.raises(FsdlError, match="tpu-v5litepod-8") as refused:
            target.plan(Job(kind="script", name="x", script="once.py", resources=resources), project)
        assert refused.value.where in ("--gpus", "--procs", "--nodes")
    elsewhere, _ = rented(accelerator="tpu-v5litepod-8", infra=["aws"])
    with pytest.raises(FsdlError, match="aws has no TPUs"):
        elsewhere.admit(job, project)


def test_only_what_max_price_allows_is_rented(rented, tmp_path):
    "SkyPilot takes the next candidate where the first has no machines: a dearer one must not be among them."
    offers = [
        Offer("Lambda", "gpu_8x", "us-east-1", 24.0),
        Offer("AWS", "p5", "us-east-1", 55.0, 20.5),
        Offer("AWS", "p5", "us-west-2", 62.0, 30.0),
        Offer("GCP", "a3", "us-central1", None, 30.0),
        Offer("GCP", "(attachable)", "us-central1", 1.0, 1.0),
    ]

    def asked(resources=Resources(gpus=8), **fields):
        target, project = rented(**{"accelerator": "H100", "infra": ["aws", "gcp", "lambda"], **fields})
        for spot in (True, False):
            target.engine.cli._offers[
                "H100", 8, spot, *sorted({place.partition("/")[0] for place in target.fields.infra})
            ] = offers, 1e18
        job = Job(kind="script", name="x", script="once.py", resources=resources)
        target.admit(job, project)
        return yaml.safe_load(target.plan(job, project))["resources"]

    both = asked(max_price=60.0)
    assert (
        both["any_of"]
        == [
            {"infra": "lambda/us-east-1", "instance_type": "gpu_8x"},
            {"infra": "aws/us-east-1", "instance_type": "p5"},
        ]
        and both["max_hourly_cost"] == 60.0
    )
    assert asked(Resources(nodes=2, gpus=8), max_price=60.0)["infra"] == "lambda/us-east-1"
    assert asked(max_price=63.0, infra=["aws/us-west-2"])["infra"] == "aws/us-west-2"
    assert asked(infra=["aws"])["infra"] == "aws"  # no cap: as configured
    for further, said in (
        ({"max_price": 60.0, "infra": ["aws/us-west-2"]}, "62.00 USD an hour"),
        ({"max_price": 60.0, "infra": ["aws", "k8s/lab"]}, "what k8s/lab costs is not known"),
        ({"max_price": 60.0, "infra": ["gcp"]}, "no candidate has a price"),
        ({"max_price": 60.0, "infra": ["azure"]}, "catalogue has no machine"),
    ):
        with pytest.raises(FsdlError, match=said):
            asked(**further)
    with pytest.raises(
        FsdlError, match="max_price cannot be kept: prices are known for machines with GPUs only"
    ):
        asked(Resources(gpus=0), max_price=60.0)
    unread, project = rented(accelerator="H100", max_price=60.0)
    with pytest.raises(FsdlError, match="max_price cannot be kept: SkyPilot's catalogue cannot be read"):
        unread.admit(Job(kind="script", name="x", script="once.py", resources=Resources(gpus=8)), project)


def test_a_skypilot_that_is_too_old_is_refused(rented, tmp_path):
    target, project = rented()
    old = tmp_path / "old sky"
    old.write_text("#!/bin/sh\necho 'skypilot, version 0.11.2'\n")
    old.chmod(0o755)
    target, project = rented(sky=str(old))
    with pytest.raises(FsdlError, match="0.11.2 is too old: 0.13 is needed") as refused:
        target.admit(Job(kind="script", name="x", script="once.py"), project)
    assert refused.value.fix == "uv tool upgrade skypilot" and not target.look().reachable


def test_prices_that_are_not_known_are_said_to_be(rented):
    target, project = rented(accelerator="H100")
    text = target.plan(Job(kind="script", name="x", script="once.py", resources=Resources(gpus=8)), project)
    assert "# SkyPilot's catalogue cannot be read" in text


def test_what_skypilot_changes_is_said_before_the_first_use(rented):
    target, project = rented(accepts_sky_changes=False, infra=["slurm/lab"])
    job = Job(kind="script", name="x", script="once.py")
    with pytest.raises(FsdlError, match="authorized_keys") as refused:
        target.admit(job, project)
    assert refused.value.fix.startswith("fsdl targets consent cloud ") and not consented(
        "cloud", ("slurm/lab",)
    )
    agreed, _ = rented(infra=["slurm/lab"])
    submit_job(agreed, project, "once.py")  # said once with the launch, remembered from then on
    assert consented("cloud", ("slurm/lab",))
    target.admit(job, project)
    other, _ = rented(accepts_sky_changes=False, infra=["slurm/other"])
    with pytest.raises(FsdlError, match="authorized_keys"):  # other candidates, another question
        other.admit(job, project)


def on_a_terminal(words: list[str], folder: Path, answer: str) -> str:
    "Give a command on a terminal of its own, and answer its question; all that was shown."
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execv(words[0], words)
    shown, answered = b"", False
    while True:
        try:
            data = os.read(terminal, 4096)
        except OSError:  # the other end is closed
            data = b""
        if not data:
            break
        shown += data
        if not answered and b"[y/N]" in shown:
            os.write(terminal, answer.encode() + b"\n")
            answered = True
    os.close(terminal)
    return f"{shown.decode()}\nstatus {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}"


def test_consent_by_command_function_and_magic(rented, monkeypatch):
    """The command that the refusal names: shown without a terminal, asked on one, remembered; a notebook has
    the same words.
    """
    target, project = rented(accepts_sky_changes=False, infra=["slurm/lab"])
    job = Job(kind="script", name="x", script="once.py")
    words = [
        sys.executable,
        "-c",
        "from fsdl_dev.cli.main import main; main()",
        "targets",
        "consent",
        "cloud",
    ]
    shown = subprocess.run(
        words, cwd=project.root, text=True, capture_output=True, timeout=300, stdin=subprocess.DEVNULL
    )
    assert (
        shown.returncode == 3
        and "authorized_keys" in shown.stdout
        and "fix: fsdl targets consent cloud --yes" in shown.stdout
    )
    assert (
        on_a_terminal(words, project.root, "n").endswith("Nothing is launched there.\r\n\nstatus 3")
        and not target.agreed()
    )
    asked = on_a_terminal(words, project.root, "y")
    assert "authorized_keys" in asked and asked.endswith("Remembered.\r\n\nstatus 0") and target.agreed()
    target.admit(job, project)
    again = subprocess.run(
        [*words, "--json"],
        cwd=project.root,
        text=True,
        capture_output=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )
    assert again.returncode == 0 and json.loads(again.stdout)["agreed"] is True
    other, _ = rented(accepts_sky_changes=False, infra=["aws"])
    given = fsdl_dev.consent("cloud", folder=project.root)
    assert (
        not given.agreed
        and not other.agreed()
        and "skypilot-v1" in given.to_text()
        and fsdl_dev.consent("local", folder=project.root).agreed
    )
    program = (
        "from IPython.core.interactiveshell import InteractiveShell\nshell ="
        " InteractiveShell.instance()\nshell.run_line_magic('load_ext', 'fsdl_dev')\nfor line in ('consent"
        " cloud', 'consent cloud --yes'): print(shell.run_line_magic('fsdl_targets', line))"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], cwd=project.root, text=True, capture_output=True, timeout=300
    ).stdout
    assert said.index("Not agreed to yet") < said.index("You have agreed") and other.agreed()


def test_a_launch_that_skypilot_refuses_leaves_nothing(rented, tmp_path):
    target, project = rented()
    (tmp_path / "sky" / "state").mkdir(exist_ok=True)
    (tmp_path / "sky" / "state" / "break.json").write_text(
        json.dumps({"jobs launch": "sky.exceptions.NoCloudAccessError: No cloud access is set up"})
    )
    with pytest.raises(FsdlError, match="no cloud that it may use") as refused:
        submit_job(target, project, "once.py")
    assert refused.value.fix == "sky check"
    assert not [path for path in (tmp_path / "bucket" / "runs").glob("*") if any(path.rglob("job.json"))]


@pytest.mark.slow
def test_a_machine_that_is_not_to_be_had(rented, tmp_path):
    target, project = rented()
    (tmp_path / "sky" / "state").mkdir(exist_ok=True)
    (tmp_path / "sky" / "state" / "break.json").write_text(
        json.dumps({"late": "Failed to acquire resources in all zones in us-east-1"})
    )
    run = submit_job(target, project, "once.py")
    last = wait_for(target, run, seconds=300)
    assert last["state"] == "failed" and "Failed to acquire resources" in last["reason"]


@pytest.mark.slow
def test_a_spot_machine_is_taken_away(rented, tmp_path):
    target, project = rented(spot=True)
    run = submit_job(target, project, "lives.py")
    wait_for(target, run, seconds=300, until=lambda: "life 1" in target.logs(run)[0])
    subprocess.run([target.fields.sky, "stand-in", "preempt", object_name(run.id)], check=True, timeout=300)
    assert wait_for(target, run, seconds=300)["state"] == "succeeded", run.last_state()
    wait_for(target, run, (), 300, until=lambda: "life 2" in target.logs(run)[0])
    assert any(event["kind"] == "restart" for event in read_events(run.events))


@pytest.mark.slow
def test_a_run_whose_time_is_over_is_queued_again(rented):
    "Exit status 85: SkyPilot starts the managed job again, and says so in its queue."
    target, project = rented()
    run = submit_job(target, project, "lives.py", resources=Resources(time="15s"))
    assert wait_for(target, run, seconds=300)["state"] == "succeeded", run.last_state()
    assert "life 1" in target.logs(run)[0] and "life 2" in target.logs(run)[0]
    assert any(event["kind"] == "restart" for event in read_events(run.events))


def test_dollars_reach_the_card(rented, monkeypatch):
    "What SkyPilot's time costs by the catalogue is an event of the run, and a line of its card."
    target, project = rented()
    monkeypatch.setattr(
        target.engine.prices, "price", lambda *_: Money(7200.0, "USD")
    )  # no catalogue is here
    run = submit_job(target, project, "once.py", resources=Resources(gpus=0))
    assert wait_for(target, run, seconds=300)["state"] == "succeeded", run.last_state()
    deadline = time.monotonic() + 120
    while not (told := [event for event in read_events(run.events) if event["kind"] == "accounting"]):
        assert time.monotonic() < deadline, "no account of the run"
        target.settle(run)
    view = RunView().update(read_events(run.events))
    assert view.cost.accounting.money == (Money(told[0]["cost"], "USD"),) and told[0]["cost"] > 0
    assert f"{told[0]['cost']:,.2f} USD (SkyPilot)" in say_cost(view)
    assert view_from_text(view_text(view)).cost == view.cost


TRIAL = """\
import sys
from fsdl_dev.core.events import current_writer
from fsdl_dev.core.event_kinds import Metric
current_writer().write(Metric(step=1, values={"acc": float(sys.argv[2])}))
"""


@pytest.mark.slow
def test_a_sweep_sums_what_its_trials_were_charged(rented, tmp_path):
    "Accounts that arrive after a trial's end are in the sum of its card, and in the index."
    _, project = rented(accelerator="L4", env={"CUDA_VISIBLE_DEVICES": "0"})
    offer = {
        "cloud": "AWS",
        "instance_type": "g6",
        "region": "us-east-1",
        "price": 36000.0,
        "spot_price": None,
    }
    python = tmp_path / "sky" / "bin" / "python3"  # the client asks the catalogue of the Python beside `sky`
    python.write_text(f"#!/bin/sh\necho '{json.dumps([offer])}'\n")
    python.chmod(0o755)
    (tmp_path / "sky" / "state").mkdir()
    (tmp_path / "sky" / "state" / "break.json").write_text('{"accounts": 5}')
    (project.root / "trial.py").write_text(TRIAL)
    asked = {"each": {"lr": [1, 2]}, "best": "max:acc", "slots": 2, "gpus": 1, "procs": 1}
    sweep = fsdl_dev.launch("trial.py", on="cloud", folder=project.root, no_test=True, say=None, **asked)
    sweep.wait(timeout=300, progress=False)
    assert sweep.state == "succeeded", sweep.logs()
    rows = fsdl_dev.runs(tag=f"sweep={sweep.words}", folder=project.root, columns="cost")
    costs = [row.cost for row in rows]
    assert len(costs) == 2 and all(costs), costs
    assert sweep.cost["cost"] == pytest.approx(sum(costs)) and sweep.cost["currency"] == "USD"
    (own,) = fsdl_dev.runs(f"run = {sweep.words}", folder=project.root)
    assert own.cost == sweep.cost["cost"]
    assert f"{own.cost:,.2f} USD" in card_text(make_card(sweep))


def test_why_a_managed_job_failed_is_said(rented, tmp_path):
    "SkyPilot's queue has the reason and the place only with -v."
    target, project = rented()
    run = submit_job(target, project, "once.py")
    path = tmp_path / "sky" / "state" / "state.json"
    known = json.loads(path.read_text())
    end_all(path.parent)
    known["jobs"][0] |= {"status": "FAILED_NO_RESOURCE", "failure_reason": "no H100 in us-east-1"}
    path.write_text(json.dumps(known))
    assert "no H100 in us-east-1" in target.engine.poll([run])[run.id].reason
    known["jobs"][0] |= {"status": "RECOVERING", "failure_reason": None, "details": "backing off"}
    path.write_text(json.dumps(known))
    assert "backing off" in target.engine.poll([run])[run.id].reason


def test_one_look_says_that_a_run_was_lost_and_when(rented, tmp_path):
    "SkyPilot dates the end, long before anybody looked."
    target, project = rented()
    run = submit_job(target, project, "once.py")
    path = tmp_path / "sky" / "state" / "state.json"
    end_all(path.parent)
    known, at = json.loads(path.read_text()), time.time() - 3600
    known["jobs"][0] |= {"status": "FAILED_DRIVER", "end_at": at}
    path.write_text(json.dumps(known))
    last = ended_by_one_look(get_target("cloud", project), run)
    assert last["state"] == "failed" and "driver" in last["reason"] and last["ended"] == at, last


def up_and_down(
    folder: Path, node: int, lines: str, path: str = os.environ["PATH"]
) -> subprocess.CompletedProcess:
    "One machine's part of a run with these lines for a start script."
    bucket, disk = folder / "bucket", folder / f"disk {node}"
    for name, text in (
        ("runtimes/a.zip", "zip"),
        ("runtimes/a.sh", "functions"),
        ("runs/r/start.sh", f'cd "$(dirname "$0")"\n{lines}\n'),
    ):
        (bucket / name).parent.mkdir(parents=True, exist_ok=True)
        (bucket / name).write_text(text)
    script = uplink_script(str(bucket), str(disk), "r", f"{disk}/runtimes/a.zip")
    return subprocess.run(
        ["sh", "-c", script],
        env={"PATH": path, "NODE_RANK": str(node), "FSDL_UPLINK_SECONDS": "0.1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_each_machine_keeps_its_part_of_a_checkpoint(tmp_path):
    """Sharded checkpoints: every machine writes a file of its own, and the first the hidden one that says
    what they hold.
    """
    for node in (1, 0):
        lines = (
            f"mkdir -p checkpoints/step-5 logs && echo {node} > checkpoints/step-5/__{node}_0.distcp && echo"
            f" {node} > logs/rank{node}.log && sleep 1"
            + (" && echo all > checkpoints/step-5/.metadata" if node == 0 else "")
        )
        done = up_and_down(tmp_path, node, lines)
        assert done.returncode == 0, done.stderr
    kept = tmp_path / "bucket" / "runs" / "r"
    assert {path.name: path.read_text() for path in (kept / "checkpoints" / "step-5").iterdir()} == {
        "__0_0.distcp": "0\n",
        "__1_0.distcp": "1\n",
        ".metadata": "all\n",
    }
    assert [path.name for path in (kept / "logs").iterdir()] == [
        "rank0.log"
    ]  # the others send theirs to the first


def test_a_full_disk_keeps_no_event_from_the_bucket(tmp_path):
    """An event is held as it is until its log is there; where there is no room for that, it is sent all the
    same.
    """
    program = tmp_path / "bin" / "cp"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\nfor to; do :; done\ncase $to in */.marks.*) echo half > "$to"; exit 1;; esac\nexec'
        f' {shutil.which("cp")} "$@"\n'
    )
    program.chmod(0o755)
    done = up_and_down(
        tmp_path,
        0,
        "mkdir -p events logs && echo line > logs/rank0.log && echo succeeded > events/worker.jsonl",
        f"{program.parent}:{os.environ['PATH']}",
    )
    kept = tmp_path / "bucket" / "runs" / "r"
    assert (
        done.returncode == 0
        and (kept / "events" / "worker.jsonl").read_text() == "succeeded\n"
        and (kept / "logs" / "rank0.log").read_text() == "line\n"
    )


def test_a_machine_that_comes_after_the_cancel_begins_nothing(tmp_path):
    (tmp_path / "bucket" / "runs" / "r").mkdir(parents=True)
    (tmp_path / "bucket" / "runs" / "r" / "cancel.json").write_text("{}")
    done = up_and_down(tmp_path, 0, "touch begun && mkdir -p checkpoints && touch checkpoints/begun")
    assert done.returncode == 0 and "cancelled before it began" in done.stdout
    assert not list(tmp_path.rglob("begun"))


def breaks(folder: Path, **what) -> None:
    "Have the stand-in fail from now on: what it says, by the command."
    (folder / "sky" / "state").mkdir(exist_ok=True)
    (folder / "sky" / "state" / "break.json").write_text(
        json.dumps({key.replace("_", " "): text for key, text in what.items()})
    )


@pytest.mark.slow
def test_a_passing_fault_of_the_controller_loses_no_run(rented, tmp_path):
    target, project = rented()
    run = submit_job(target, project, "slow.py")
    wait_for(target, run, {"running", *FINAL}, seconds=300)
    breaks(
        tmp_path,
        jobs_queue=(
            "sky.exceptions.ClusterNotUpError: Failed to connect to jobs controller, please try again later."
        ),
    )
    with pytest.raises(Unreachable, match="Failed to connect to jobs controller"):
        target.engine.poll([run])
    with pytest.raises(Unreachable):
        target.engine.find(run.id)
    breaks(tmp_path, jobs_queue="sky.exceptions.ClusterNotUpError: No in-progress managed jobs.")
    assert (
        target.engine.poll([run])[run.id].state == "unknown" and target.engine.find(run.id) is None
    )  # it was handed over: no verdict at once
    breaks(tmp_path)
    assert target.engine.poll([run])[run.id].state == "running" and target.poll(run) == "running"
    target.cancel(run)
    assert wait_for(target, run, seconds=300)["state"] == "cancelled"


@pytest.mark.slow
@pytest.mark.parametrize("managed", [True, False])
def test_cancelled_while_the_launch_is_under_way(rented, tmp_path, managed):
    target, project = rented(managed=managed)
    breaks(tmp_path, under_way="yes")
    run = submit_job(target, project, "once.py")
    assert target.engine.poll([run])[run.id].state == "queued"
    target.cancel(run)
    assert wait_for(target, run, seconds=300)["state"] == "cancelled"
    state = json.loads((tmp_path / "sky" / "state" / "state.json").read_text())
    assert state["requests"][0]["status"] == "CANCELLED" and state["jobs"] == []


@pytest.mark.slow
def test_a_launcher_that_died_before_it_knew_the_request(rented, tmp_path):
    "Nothing is called lost while SkyPilot works on a launch."
    target, project = rented()
    breaks(tmp_path, under_way="yes")
    run = submit_job(target, project, "once.py")
    record = json.loads((run.path / "engine.json").read_text())
    (run.path / "engine.json").write_text(
        json.dumps({key: value for key, value in record.items() if key not in ("id", "request", "launcher")})
    )
    with pytest.raises(Unreachable, match="still works on a launch"):
        target.engine.find(run.id)
    end = time.monotonic() + 3
    while time.monotonic() < end:
        assert target.poll(run) == "queued", run.last_state()
        time.sleep(0.2)
    breaks(tmp_path)
    subprocess.run([target.fields.sky, "stand-in", "go", "on"], check=True, timeout=300)
    assert wait_for(target, run, seconds=300)["state"] == "succeeded", run.last_state()


@pytest.mark.slow
def test_a_cluster_of_its_own(rented):
    target, project = rented(managed=False)
    run = submit_job(target, project, "hällo wörld.py", "ä ö")
    assert wait_for(target, run, seconds=300)["state"] == "succeeded", run.last_state()
    assert target.logs(run)[0] == "grüße ä ö\n" and target.engine.find(run.id).managed is False


@pytest.mark.tier("contract", "test_killed_worker")
@pytest.mark.tier("smoke", "test_launch_and_non_ascii_and_fetch", "test_logs_while_running_then_cancel")
@pytest.mark.slow
class TestSkyContract(EngineContract):
    "What every target passes, as managed jobs."

    name = "cloud"
    crowd = 8
    seconds, lag = 300.0, 60.0

    @pytest.fixture(autouse=True)
    def _sky(self, tmp_path):
        self.folder, self.program = tmp_path, a_sky(tmp_path / "sky")
        yield
        end_all(tmp_path / "sky" / "state")

    def fields(self) -> dict:
        return sky_fields(self.folder, self.program)

    def requeue(self, run) -> None:
        subprocess.run([self.program, "stand-in", "preempt", object_name(run.id)], check=True, timeout=300)

    def kill_worker(self, run) -> None:
        jobs = json.loads((self.folder / "sky" / "state" / "state.json").read_text())["jobs"]
        for pid in next(job for job in jobs if job["job_name"] == object_name(run.id))["pids"]:
            for child in subprocess.run(
                ["pgrep", "-g", str(pid), "-f", "fsdl_dev.worker.worker"], capture_output=True, text=True
            ).stdout.split():
                os.kill(int(child), 9)

    @pytest.mark.skipif(
        os.geteuid() != 0
        or bool(subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode),
        reason="machines with disks of their own take the right to mount: run as root",
    )
    def test_gang_of_two_nodes(self, tmp_path):
        super().test_gang_of_two_nodes(tmp_path)

    def test_more_than_there_is(self, tmp_path):
        target, project = self.open(tmp_path)
        with pytest.raises(FsdlError, match="does not say which"):
            submit_job(target, project, "once.py", resources=Resources(gpus=4096))


@pytest.mark.slow
def test_states_are_final(rented):
    target, project = rented()
    run = submit_job(target, project, "fails.py")
    assert wait_for(target, run, seconds=300)["state"] == "failed" and run.state() in FINAL
    until(lambda: target.queue() == [], "for SkyPilot, which hears of the end after the bucket")
    assert target.look().reachable and target.look().running == 0 and run.state() == "failed"
