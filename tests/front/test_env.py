"""Environments: a script with a header of its own, and what `fsdl env` finds, makes again and writes."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

import fsdl_dev
from fsdl_dev.cli.main import main
from fsdl_dev.core.errors import FsdlError
from fsdl_dev.environments.uv import find_uv

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_uv() is None, reason="no uv here (pip install uv)"),
]
PINNED = f"docker.io/library/python@sha256:{'ab' * 32}"
USES = "import sys, tinyone, fsdl_dev\nprint(sys.prefix, tinyone.VALUE)\nfsdl_dev.log(x=1.0)\n"


def wheel(folder: Path, name: str, version: str) -> Path:
    """A package of one line, as an index would have it."""
    folder.mkdir(exist_ok=True)
    info, path = f"{name}-{version}.dist-info", folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", f"VALUE = '{version}'\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def header(*lines: str) -> str:
    return "".join(f"# {line}\n" for line in ("/// script", *lines, "///"))


def ask(*words: str) -> tuple[int, str]:
    """The exit status of a command, and all that it says."""
    done = CliRunner().invoke(main, [*words])
    return done.exit_code, " ".join(done.output.split())


def checks(*words: str) -> list[dict]:
    """What `fsdl env check` finds, other than what is right."""
    done = CliRunner().invoke(main, ["env", "check", *words, "--json"])
    assert done.exit_code in (0, 3), done.output
    return [check for check in json.loads(done.stdout) if check["verdict"] != "pass"]


@pytest.fixture
def wheels(tmp_path, monkeypatch) -> Path:
    """What uv finds here, and nothing else: no test of these asks the network."""
    folder = tmp_path / "wheels"
    for version in ("1.0", "2.0"):
        wheel(folder, "tinyone", version)
    (tmp_path / "index").mkdir()
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_DEFAULT_INDEX", (tmp_path / "index").as_uri())
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS", "never")
    return folder


@pytest.fixture
def folder(tmp_path, wheels, monkeypatch) -> Path:
    """A project whose launches go to the test target, which is the current folder."""
    project = tmp_path / "prøject with spaces"
    project.mkdir()
    (project / "pyproject.toml").write_text('[project]\nname = "study"\n[tool.fsdl_dev]\ntarget = "test"\n')
    monkeypatch.chdir(project)
    monkeypatch.delenv("FSDL_STORE", raising=False)
    return project


def launched(script: str, **asked) -> fsdl_dev.Run:
    run = fsdl_dev.launch(script, say=None, **asked).wait(progress=False)
    assert run.state == "succeeded", run.logs() or run.view.reason or run.tail()
    return run


# --- a script with a header ----------------------------------------------------------------------------------


def test_a_script_has_the_packages_of_its_header(folder, wheels):
    (folder / "train.py").write_text(
        header('requires-python = ">=3.11"', 'dependencies = ["tinyone<2"]') + USES
    )
    run = launched("train.py")
    place = folder / ".fsdl" / "environments"
    assert f"{place}/script-" in run.logs() and run.logs().endswith(" 1.0\n")
    assert run.snapshot.environment["packages"] == {"tinyone": "1.0"}, "its lock is that of the environment"
    wheels.rename(wheels.with_name("away"))  # nothing is asked or installed again
    assert launched("train.py").logs() == run.logs()
    wheels.with_name("away").rename(wheels)
    again = fsdl_dev.reproduce(run, say=None)
    assert again.ok and again.again.snapshot.digest == run.snapshot.digest
    status, said = ask("check", "train.py")
    assert "an environment of its own, which is there: Python >=3.11; tinyone<2" in said and status == 0, said


def test_each_header_has_its_environment_and_a_lock_beside_the_script_holds(folder, wheels):
    text = header('dependencies = ["tinyone"]') + USES
    for name in ("one.py", "two.py"):
        (folder / name).write_text(text)
    first = launched("one.py")
    assert first.logs().endswith(" 2.0\n") and launched("two.py").logs() == first.logs(), "the same header"
    wheel(wheels, "tinyone", "3.0")
    assert launched("one.py").logs() == first.logs(), "an unchanged header gives the same packages"
    subprocess.run([find_uv(), "lock", "-q", "--script", "two.py"], cwd=folder, check=True)
    wheel(wheels, "tinyone", "4.0")
    assert launched("two.py").logs().endswith(" 3.0\n"), "as two.py.lock has it"
    (folder / "two.py").write_text(header('dependencies = ["tinyone>3"]') + USES)
    with pytest.raises(FsdlError, match="uv cannot make the environment of two.py") as caught:
        launched("two.py")
    assert caught.value.fix == "uv lock --script two.py"


def test_the_runs_of_each_value_have_it_too(folder):
    (folder / "train.py").write_text(header('dependencies = ["tinyone"]') + USES)
    group = fsdl_dev.launch("train.py", each={"lr": [1, 2]}, say=None)
    group.wait(progress=False)
    assert [run.logs().endswith(" 2.0\n") for run in group] == [True, True]


def test_several_processes_need_torch(folder):
    (folder / "train.py").write_text(header('dependencies = ["tinyone"]') + USES)
    status, said = ask("launch", "train.py", "--procs", "2")
    assert (
        status in (2, 3) and "torch starts 2 processes" in said and "uv add --script train.py torch" in said
    ), said


def test_headers_that_cannot_be_had(folder, monkeypatch):
    told = {
        'dependencies = ["no-such-thing-9"]': "Because no-such-thing-9 was not found",
        'dependencies = ["one two"]': "cannot be read",
        "dependencies = [": "cannot be read",
        'requires-python = "<3.10"': "needs 3.11 or newer",
        'requires-python = ">=3.39"': "there is no Python >=3.39 on this machine",
    }
    for line, words in told.items():
        (folder / "train.py").write_text(header(line) + "print(1)\n")
        status, said = ask("launch", "train.py")
        assert status in (2, 3) and words in said and "fix:" in said, said
    assert not list((folder / ".fsdl").glob("runs/*")), "nothing was launched"
    (folder / "train.py").write_text(header('dependencies = ["tinyone"]') + "print(1)\n")
    monkeypatch.setattr("fsdl_dev.environments.made.find_uv", lambda: None)
    status, said = ask("launch", "train.py")
    assert status in (2, 3) and "there is no uv here to make it" in said and "pip install uv" in said, said


def test_a_target_that_says_which_packages_jobs_have_keeps_them(folder):
    (folder / "train.py").write_text(
        header('dependencies = ["no-such-thing-9"]') + "import sys\nprint(sys.prefix)\n"
    )
    run = launched("train.py", target_fields={"python": sys.executable})
    assert run.logs().strip() == sys.prefix
    assert any("no-such-thing-9" in check.message for check in run.job.launch.checks)


def test_on_another_machine_uv_makes_it_there(folder, wheels, own_sshd, tmp_path):
    "From the lock, whose packages were resolved here. A target whose table says `there` keeps its own."
    far, home = tmp_path / "far", own_sshd.home / ".local" / "bin"
    home.mkdir(parents=True)
    (home / "uv").symlink_to(find_uv())
    table = f'[tool.fsdl_dev.targets.lab]\nkind = "ssh"\nhost = "{own_sshd.host}"\nstorage = "{far}"\n'
    names = ("UV_FIND_LINKS", "UV_DEFAULT_INDEX")
    env = f"env = {{ {', '.join(f'{name} = {json.dumps(os.environ[name])}' for name in names)} }}\n"
    (folder / "pyproject.toml").write_text(table + env)
    (folder / "train.py").write_text(header('dependencies = ["tinyone<2"]') + USES)
    run = launched("train.py", on="lab", gpus=0)
    assert run.logs().startswith(f"{far}/envs/") and run.logs().endswith(" 1.0\n")
    (folder / "pyproject.toml").write_text(table + f'environment = "there"\npython = "{sys.executable}"\n')
    status, said = ask("check", "train.py", "--on", "lab", "--no-test")
    assert status == 0 and "names tinyone<2, which this environment does not have" in said, said


def test_a_notebook_of_marimo_is_a_script(folder, monkeypatch):
    monkeypatch.delenv("UV_DEFAULT_INDEX")
    body = (
        "import marimo\n\napp = marimo.App()\n\n\n@app.cell\ndef _():\n    import marimo as mo\n    lr ="
        ' mo.cli_args().get("lr")\n    return (lr,)\n\n\n@app.cell\ndef _(lr):\n    print("lr is", lr)\n   '
        ' return\n\n\nif __name__ == "__main__":\n    app.run()\n'
    )
    (folder / "study.py").write_text(body)
    status, said = ask("launch", "study.py")
    assert status in (2, 3) and "is a notebook of marimo, and this environment does not have" in said, said
    assert "uv add --script study.py marimo" in said, said
    (folder / "study.py").write_text(header('dependencies = ["tinyone"]') + body)
    status, said = ask("launch", "study.py")
    assert status in (2, 3) and "its header does not name marimo" in said, said
    (folder / "study.py").write_text(header('dependencies = ["marimo"]') + body)
    try:
        run = fsdl_dev.launch("study.py", args=["--lr", "0.5"], say=None).wait(progress=False)
    except FsdlError as error:
        pytest.skip(f"uv can install nothing here: {error}")
    assert run.state == "succeeded" and "lr is 0.5" in run.logs(), run.logs()


# --- what disagrees ------------------------------------------------------------------------------------------


def test_a_lock_for_another_platform_and_what_it_was_compiled_from(folder):
    (folder / "requirements").mkdir()
    lock = folder / "requirements" / "project.txt"
    lock.write_text(
        "#    uv pip compile --python-version 3.39 --python-platform windows project.in\npywin32==306\n"
    )
    (folder / "requirements" / "project.in").write_text("numpy\nno-such-thing-9\n")
    (folder / "environment.yml").write_text(
        "dependencies: [python=3.39, {pip: [-r requirements/gone.txt]}]\n"
    )
    found = checks("--offline")
    said = " ".join(check["message"] for check in found)
    for words in (
        "was compiled for Python 3.39 alone",
        "was compiled for windows alone",
        "pins what exists on Windows only, for each machine: pywin32",
        "names numpy, no-such-thing-9, and no lock has them",
        "names no-such-thing-9: not installed here",
        "environment.yml names Python 3.39",
        "installs from requirements/gone.txt, and there is no such file",
    ):
        assert words in said, said
    assert all(check["where"] and check["fix"] for check in found)
    lock.write_text("tinyone==7.0\n")
    (only,) = [check for check in checks("--lock", str(lock)) if check["verdict"] == "fail"]
    assert "pins tinyone 7.0, which the index does not have" in only["message"]
    status, said = ask("env", "check", "--lock", "none.txt")
    assert status == 4 and "cannot be read" in said, said


def test_a_template_whose_dependency_is_missing(folder):
    assert ask("new", "flowers", "--template", "blank")[0] == 0
    source = folder / "flowers" / "requirements" / "project.in"
    source.write_text(source.read_text() + "no-such-thing-9\n")
    os.chdir(folder / "flowers")
    found = {
        (check["name"], check["fix"])
        for check in checks("--offline")
        if "no-such-thing-9" in check["message"]
    }
    assert found == {("lock", "make lock"), ("packages", "make setup")}


def test_a_kernel_of_another_environment(folder, tmp_path, monkeypatch):
    other, data = tmp_path / "other env", tmp_path / "jupyter" / "kernels"
    subprocess.run([find_uv(), "venv", "-q", "--python", sys.executable, other], check=True)
    for name, python in {
        "other": other / "bin" / "python",
        "dead": tmp_path / "gone" / "bin" / "python",
    }.items():
        (data / name).mkdir(parents=True)
        spec = {
            "argv": [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            "language": "python",
        }
        (data / name / "kernel.json").write_text(json.dumps({**spec, "display_name": name}))
    monkeypatch.setenv("JUPYTER_PATH", str(data.parent))
    for name in ("other", "dead", "unknown", "python3"):
        content = {
            "cells": [],
            "metadata": {"kernelspec": {"name": name}},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
        (folder / f"{name}.ipynb").write_text(json.dumps(content))
    found = {check["where"]: check for check in checks("--offline") if check["name"] == "kernel"}
    assert set(found) == {f"{name}.ipynb: kernelspec" for name in ("other", "dead", "unknown")}
    assert "is of another environment" in found["other.ipynb: kernelspec"]["message"]
    assert "no fsdl_dev" in found["other.ipynb: kernelspec"]["message"]
    assert found["dead.ipynb: kernelspec"]["verdict"] == "fail"
    assert "ipykernel install --user --name unknown" in found["unknown.ipynb: kernelspec"]["fix"]


def test_packages_that_do_not_fit_are_found_in_another_python(folder, tmp_path):
    "torchvision of another torch; a module that was compiled for NumPy 1."
    place = tmp_path / "box"
    subprocess.run([find_uv(), "venv", "-q", "--python", sys.executable, place], check=True)
    site = next(place.glob("lib/python*/site-packages"))
    for name, version, needs in (
        ("torch", "2.14.0", ""),
        ("torchvision", "0.28.0", "Requires-Dist: torch==2.13.0\n"),
        ("numpy", "2.4.6", ""),
        ("oldmod", "1.0", "Requires-Dist: numpy\n"),
    ):
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
        (info / "RECORD").write_text(
            "oldmod/core.cpython-311-x86_64-linux-gnu.so,,\n" if name == "oldmod" else ""
        )
    (site / "oldmod").mkdir()
    (site / "oldmod" / "core.cpython-311-x86_64-linux-gnu.so").write_bytes(b"\0numpy.core.multiarray\0")
    (site / "numpy.py").write_text("raise ImportError('numpy.core.multiarray failed to import')\n")
    text = f'[tool.fsdl_dev.targets.box]\nkind = "local"\npython = "{place}/bin/python"\n'
    (folder / "pyproject.toml").write_text(text)
    found = {check["name"]: check["message"] for check in checks("--on", "box")}
    assert found["torch"] == "torchvision 0.28.0 is built for torch ==2.13.0, and torch 2.14.0 is there."
    assert "oldmod 1.0 was compiled for NumPy 1, and NumPy 2.4.6 is there" in found["numpy"]
    assert "failed to import" in found["numpy"]


def test_a_target_is_asked(folder, own_sshd, tmp_path):
    (folder / "pyproject.toml").write_text(own_sshd.target(tmp_path / "far"))
    (folder / "requirements.txt").write_text("# pip-compile with Python 3.39\npywin32==306\n")
    found = checks("--on", "lab", "--offline")
    assert {check["name"] for check in found} == {"lock"}
    assert "the Python of lab is" in found[0]["message"] and "and lab is Linux" in found[1]["message"]
    text = own_sshd.target(tmp_path / "far").replace(f'python = "{sys.executable}"', 'environment = "lock"')
    (folder / "pyproject.toml").write_text(text)
    (folder / "requirements.txt").unlink()
    (missing,) = [check for check in checks("--on", "lab") if check["verdict"] == "fail"]
    assert missing["message"] == "lab has no uv, which makes the environment of a lock there."
    own_sshd.stop()
    assert any("lab does not answer" in check["message"] for check in checks("--on", "lab"))
    status, said = ask("env", "check", "--on", "lob")
    assert status == 4 and "lab" in said, said


# --- the environment of a run, and an image ------------------------------------------------------------------


def test_the_environment_of_a_run_is_made_again(folder, wheels, tmp_path):
    sources = f'tinytwo = {{ path = "{wheel(tmp_path / "own", "tinytwo", "1.0")}" }}'
    lines = ['dependencies = ["tinyone", "tinytwo"]', "[tool.uv.sources]", sources]
    (folder / "train.py").write_text(header(*lines) + USES)
    launched("train.py")
    status, said = ask("env", "recreate", "--to", "again", "--kernel")
    assert (
        "1 package as recorded" in said and "tinytwo 1.0 cannot be had: it was installed from a file" in said
    ), said
    assert status == 3 and "The run had no ipykernel" in said and "source " in said, said
    done = subprocess.run(
        ["again/bin/python", "-c", "import tinyone; print(tinyone.VALUE)"], capture_output=True
    )
    assert done.stdout == b"2.0\n"
    assert ask("env", "recreate", "--to", "again")[0] == 2
    (wheels / "tinyone-2.0-py3-none-any.whl").unlink()
    subprocess.run([find_uv(), "cache", "clean", "-q", "tinyone"], check=False)
    status, said = ask("env", "recreate", "--to", "later")
    assert status == 0 and "tinyone 2.0 cannot be had: the index does not have this version" in said, said


def test_a_dockerfile_names_its_base_by_digest(folder):
    (folder / "requirements").mkdir()
    lock = folder / "requirements" / "project.txt"
    lock.write_text("#    uv pip compile --universal --python-version 3.11 project.in\ntinyone==2.0\n")
    status, said = ask("env", "dockerfile")
    assert status == 2 and "skopeo inspect" in said, said
    status, said = ask("env", "dockerfile", "--base", "python:3.11")
    assert status == 2 and "may be another image tomorrow" in said and "--base python@sha256:" in said, said
    status, said = ask("env", "dockerfile", "--base", PINNED)
    assert status == 0 and f"FROM {PINNED}" in said and "COPY requirements/project.txt" in said, said
    policy = f'[tool.fsdl_dev.policy]\nowner = "ada"\nreason = "x"\nimages = ["{PINNED}"]\n'
    (folder / "pyproject.toml").write_text(policy)
    assert ask("env", "dockerfile", "--to", "Dockerfile")[0] == 0 and PINNED in Path("Dockerfile").read_text()
    assert ask("env", "dockerfile", "--to", "Dockerfile")[0] == 2, "it is there"
    lock.write_text("appnope==0.1.4\n")
    status, said = ask("env", "dockerfile")
    assert status == 2 and "exists on macOS only" in said, said
    lock.unlink()
    assert ask("env", "dockerfile")[0] == 4
