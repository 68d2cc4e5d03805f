"""The extension of JupyterLab comes with the wheel: small, without a build, and of the package's version."""

import json

import pytest
from repository import ROOT
from wheels import build_wheel, install_beside, installed_data

import fsdl_dev

FOLDER = ROOT / "labextension"
PLACE = "share/jupyter/labextensions/fsdl_dev"


def test_it_is_small_and_of_this_version():
    about = json.loads((FOLDER / "package.json").read_text())
    assert about["version"] == fsdl_dev.__version__ and about["name"] == "fsdl_dev"
    entry = FOLDER / about["jupyterlab"]["_build"]["load"]
    assert entry.is_file()
    assert sum(file.stat().st_size for file in FOLDER.rglob("*") if file.is_file()) < 16_000


@pytest.mark.slow
def test_the_wheel_installs_it(working_copy, tmp_path):
    "pip install of the wheel puts it where JupyterLab looks, without a build of JavaScript."
    wheel = build_wheel(working_copy, tmp_path)
    files = {file.relative_to(FOLDER).as_posix() for file in FOLDER.rglob("*") if file.is_file()}
    others = {name for name in installed_data(wheel) if not name.startswith("share/fsdl_dev/templates/")}
    assert {f"{PLACE}/{file}" for file in files} == others
    prefix = tmp_path / "prefix"
    install_beside(wheel, prefix)
    assert (prefix / PLACE / "static" / "remoteEntry.js").read_bytes() == (
        FOLDER / "static" / "remoteEntry.js"
    ).read_bytes()
