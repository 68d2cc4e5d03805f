"""The wheel of this package, built and installed beside the development environment."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

PIP = [sys.executable, "-m", "pip"]


def build_wheel(source: Path, folder: Path) -> Path:
    "Build the wheel of a working copy, which other tests use after: nothing that was built stays there."
    command = [*PIP, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), "."]
    subprocess.run(command, cwd=source, check=True)
    shutil.rmtree(source / "build", ignore_errors=True)
    return next(folder.glob("fsdl_dev-*.whl"))


def installed_data(wheel: Path) -> set[str]:
    "The files that a wheel installs outside of the package, below the environment's folder."
    names = zipfile.ZipFile(wheel).namelist()
    return {name.partition(".data/data/")[2] for name in names if ".data/data/" in name}


def install_beside(wheel: Path, prefix: Path) -> None:
    "Install a wheel into a folder. pip would take the development install away without --ignore-installed."
    command = [*PIP, "install", "-q", "--no-deps", "--ignore-installed", "--prefix", str(prefix), str(wheel)]
    subprocess.run(command, check=True)
