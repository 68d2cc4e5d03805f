"""The worked target of the page "Write your own engine": its code as it stands there, as a package with an entry
point, held to the contract.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner
from repository import ROOT

from fsdl_dev.cli.main import main
from fsdl_dev.core.errors import FsdlError
from fsdl_dev.core.job import Job, Resources
from fsdl_dev.engines import target as registry
from fsdl_dev.engines.contract import EngineContract, contract_project, submit_job
from fsdl_dev.engines.target import get_target

PAGE = ROOT / "nbs" / "tutorials" / "14_your_own_queue.ipynb"


def page_cells() -> list[str]:
    "The page's code cells."
    return [
        "".join(cell["source"])
        for cell in json.loads(PAGE.read_text())["cells"]
        if cell["cell_type"] == "code"
    ]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    "The page's target as an installed package, and its queue as a program that serves."
    place = tmp_path_factory.mktemp("house")
    site, spool = place / "site", place / "spöol"
    (site / "house_queue-1.0.dist-info").mkdir(parents=True)
    spool.mkdir()
    cells = page_cells()
    (site / "house_queue.py").write_text(
        "\n\n".join([cells[0], next(cell for cell in cells if "class HouseEngine" in cell)]), encoding="utf-8"
    )
    (site / "house_queue-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: house-queue\nVersion: 1.0\n"
    )
    (site / "house_queue-1.0.dist-info" / "entry_points.txt").write_text(
        "[fsdl_dev.targets]\nhouse = house_queue:HouseEngine\n"
    )
    names: dict = {}
    exec(next(cell for cell in cells if cell.startswith("HQ = ")), names)
    (place / "hq.py").write_text(names["HQ"])
    serving = subprocess.Popen(
        [sys.executable, place / "hq.py", "serve", "8"], env=os.environ | {"HQ_SPOOL": str(spool)}
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")])))
        registry._KINDS.pop("house", None)
        yield f"{shlex.quote(sys.executable)} {shlex.quote(str(place / 'hq.py'))}", spool
    (spool / "closed").touch()
    serving.wait(120)
    for job in map(json.loads, [path.read_text() for path in spool.glob("*.job")]):
        with suppress(ProcessLookupError):  # the queue closed before it saw the end
            if job["state"] == "running":
                os.killpg(job["pid"], signal.SIGKILL)
    registry._KINDS.pop("house", None)
    sys.modules.pop("house_queue", None)


def test_the_entry_point_makes_the_kind_known(installed, tmp_path, monkeypatch):
    "Named by the command, shown with its comments, refused in plain words."
    command, spool = installed
    project = contract_project(tmp_path / "project", "lab", {})
    monkeypatch.chdir(project.root)
    monkeypatch.setenv("FSDL_CONFIG", str(tmp_path / "none.toml"))
    added = CliRunner().invoke(
        main,
        [
            "targets",
            "add",
            "lab",
            "--kind",
            "house",
            "--command",
            command,
            "--spool",
            str(spool),
            "--data",
            "data/x=/datasets/x",
        ],
    )
    assert added.exit_code == 0, added.output
    assert "its program" in CliRunner().invoke(main, ["targets", "show", "house"]).output
    lab = get_target(
        "lab",
        contract_project(
            tmp_path / "other",
            "lab",
            {"kind": "house", "command": command, "spool": str(spool), "data": {"data/x": "/datasets/x"}},
        ),
    )
    assert (
        type(lab.engine).__module__ == "house_queue"
        and lab.look().reachable
        and lab.fields.data == {"data/x": "/datasets/x"}
    )
    lab.is_test = True
    for resources, said in ((Resources(nodes=2), "one machine"), (Resources(gpus=1), "have 0 GPUs")):
        with pytest.raises(FsdlError, match=said):
            submit_job(lab, lab.project, "once.py", resources=resources)


def test_an_engine_that_starts_containers_itself(installed, tmp_path):
    "A plug-in says so; then the start script does not."
    command, spool = installed
    image = {
        "environment": "image",
        "image": "registry.example/train@sha256:" + 64 * "a",
        "container": "docker",
    }
    lab = get_target(
        "lab",
        contract_project(
            tmp_path, "lab", {"kind": "house", "command": command, "spool": str(spool), **image}
        ),
    )
    job = Job(kind="script", name="x", script="once.py")
    assert "go_in docker" in lab.plan(job, lab.project)
    type(lab.engine).starts_container = True
    try:
        assert "go_in docker" not in lab.plan(job, lab.project)
    finally:
        del type(lab.engine).starts_container


@pytest.mark.slow
@pytest.mark.tier("contract")
class TestHouse(EngineContract):
    name, cannot, crowd, seconds = "lab", frozenset({"gang"}), 20, 300.0

    @pytest.fixture(autouse=True)
    def _queue(self, installed):
        self.command, self.spool = installed

    def fields(self):
        return {"kind": "house", "command": self.command, "spool": str(self.spool)}

    def kill_worker(self, run):
        os.killpg(json.loads((self.spool / f"{run.id}.job").read_text())["pid"], signal.SIGKILL)

    def requeue(self, run):
        subprocess.run(
            [*shlex.split(self.command), "preempt", run.id],
            env=os.environ | {"HQ_SPOOL": str(self.spool)},
            check=True,
        )

    def open(self, folder: Path):
        target, project = super().open(folder)
        target.is_test = True
        return target, project
