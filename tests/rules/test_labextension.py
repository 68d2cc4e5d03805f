"""The extension of JupyterLab comes with the wheel: small, without a build, and of the package's version."""

import json
import subprocess
import sys
import zipfile

import pytest
from repository import ROOT

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
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
        ".",
    ]
    subprocess.run(build, cwd=working_copy, check=True)
    wheel = next(tmp_path.glob("*.whl"))
    files = {file.relative_to(FOLDER).as_posix() for file in FOLDER.rglob("*") if file.is_file()}
    inside = {name.partition(".data/data/")[2] for name in zipfile.ZipFile(wheel).namelist()}
    assert {f"{PLACE}/{file}" for file in files} == {file for file in inside if file.startswith(f"{PLACE}/")}
    prefix = tmp_path / "prefix"
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--ignore-installed",
        "--prefix",
        str(prefix),
        str(wheel),
    ]
    subprocess.run(install, check=True)
    assert (prefix / PLACE / "static" / "remoteEntry.js").read_bytes() == (
        FOLDER / "static" / "remoteEntry.js"
    ).read_bytes()
