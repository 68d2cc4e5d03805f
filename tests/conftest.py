"""Fixtures that several test files share: isolation, throwaway nbdev projects, remote machines, a bucket, a Slurm
cluster, a browser.
"""

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from lab import CHROMIUM
from lab import browser_page as open_page
from ports import free_port
from ranks import share_fork_server
from repository import ROOT, tracked_files
from slurm_cluster import slurm, slurm_cluster  # noqa: F401  fixtures
from sshd import Sshd, reached_sshd, start_sshd
from workers import (  # noqa: F401  hooks
    pytest_collection_modifyitems,
    pytest_terminal_summary,
    pytest_xdist_make_scheduler,
)


def pytest_configure(config):
    os.environ.setdefault(
        "OMP_NUM_THREADS", "1"
    )  # many small processes at once: threads would only wait for each other
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        share_fork_server()
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a shell that started pytest in its background
        signal.signal(signal.SIGINT, signal.default_int_handler)  # what the tests start has to hear Ctrl-C
    if not hasattr(config, "workerinput"):
        _forget_the_person()
    config.addinivalue_line(
        "markers",
        "tier(name, *patterns): smoke, contract or long, for these parameters, or of a class these tests",
    )
    config.addinivalue_line("markers", "browser: needs Chromium; `make browser` runs these")
    config.addinivalue_line("markers", "slow: `make test-all` runs it, `make test` does not")
    config.addinivalue_line("markers", "smoke: `make test` runs it although it is slow (a tier)")
    config.addinivalue_line("markers", "long: LONG=1 runs it, `make test-all` alone does not (a tier)")


def _forget_the_person() -> None:
    """Let git, IPython and Jupyter read settings of the tests' own, with an identity in git: not those of the
    person who runs the tests, who may have none, sign each commit or start each kernel with lines of her own.
    """
    folder = Path(tempfile.mkdtemp(prefix="fsdl-person-"))
    atexit.register(
        shutil.rmtree, folder, ignore_errors=True
    )  # after IPython's own, which writes its history
    folder.chmod(0o755)  # some tests run programs as other users
    asked = ("git", "config", "--get-all", "safe.directory")  # whose checkout it is stays as it was
    trusted = subprocess.run(asked, cwd=folder, capture_output=True, text=True).stdout.splitlines()
    (folder / "gitconfig").write_text("[user]\n\tname = A Tester\n\temail = tester@example.com\n")
    for path in trusted:
        subprocess.run(
            ["git", "config", "-f", folder / "gitconfig", "--add", "safe.directory", path], check=True
        )
    os.environ |= {"GIT_CONFIG_GLOBAL": str(folder / "gitconfig"), "GIT_CONFIG_SYSTEM": os.devnull}
    os.environ |= {"IPYTHONDIR": str(folder / "ipython"), "JUPYTER_CONFIG_DIR": str(folder / "jupyter")}


def pytest_report_header(config):
    return "browser: " + (CHROMIUM or "none, the tests that need one are skipped")


@pytest.fixture(autouse=True)
def isolation(tmp_path, monkeypatch):
    """Every test has its own store and user state, and no W&B account, server or running job to talk to."""
    monkeypatch.setenv("FSDL_STATE", str(tmp_path / "fsdl-state"))
    monkeypatch.setenv("FSDL_STORE", str(tmp_path / "fsdl-store"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    kept = ("IN_TEST", "FSDL_RUN_DIR", "FSDL_RUN_ID", "FSDL_NOTEBOOK", "WANDB_API_KEY", "FSDL_AGENT")
    for name in kept:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def working_copy(tmp_path_factory) -> Path:
    """The working tree as git sees it, in a folder where nbdev and the docs builder may write."""
    copy = tmp_path_factory.mktemp("copy") / "repository"
    for path in tracked_files():
        target = copy / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target, follow_symlinks=False)
    return copy


# --- projects ---------------------------------------------------------------------------------------------

SETTINGS = """\
[DEFAULT]
repo = {name}
lib_name = {name}
version = 0.0.1
min_python = 3.11
license = apache2
doc_path = _docs
lib_path = {name}
nbs_path = nbs
recursive = True
tst_flags = slow cuda net
put_version_in_init = True
update_pyproject = False
branch = main
user = someone
author = Some One
author_email = someone@example.com
description = A small project
keywords = example
copyright = 2026, Some One
"""
PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "0.0.1"
requires-python = ">=3.11"

[tool.setuptools.packages.find]
include = ["{name}*"]
"""
NBDEV3 = """
[tool.nbdev]
nbs_path = "nbs"
lib_path = "{name}"
tst_flags = "slow cuda net"
"""
EXAMPLE = {
    "00_core.ipynb": [
        "# Core\n\n> One function.",
        "#| default_exp core",
        '#| export\ndef double(number: float) -> float:\n    "Twice the number."\n    return 2 * number',
        "assert double(2) == 4",
    ]
}


def write_notebook(path: Path, cells: list[str]) -> Path:
    """Write a notebook; a text that starts with `#` and a blank is prose, everything else is code."""
    notebook = nbformat.v4.new_notebook()
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "python3", "language": "python"}
    for number, text in enumerate(cells):
        prose = text.lstrip("#").startswith(" ") and text.startswith("#")
        cell = nbformat.v4.new_markdown_cell(text) if prose else nbformat.v4.new_code_cell(text)
        cell["id"] = f"cell{number:02d}"
        notebook.cells.append(cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)
    return path


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run a command that must succeed; return what it printed."""
    result = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environment},
        text=True,
        capture_output=True,
    )
    assert result.returncode == 0, f"{command} failed:\n{result.stdout}\n{result.stderr}"
    return result.stdout


def commit_all(project: Path, message: str = "a commit") -> str:
    """Commit everything under an identity of the test's own; return the commit's hash."""
    if not (project / ".git").exists():
        run("git", "init", "-q", "-b", "main", cwd=project)
    identity = [
        "-c",
        "user.name=Some One",
        "-c",
        "user.email=someone@example.com",
        "-c",
        "commit.gpgsign=false",
    ]
    run("git", "add", "-A", cwd=project)
    run("git", *identity, "commit", "-q", "--allow-empty", "-m", message, cwd=project)
    return run("git", "rev-parse", "HEAD", cwd=project).strip()


@pytest.fixture
def make_project(tmp_path):
    """Build a small project: `make_project(nbdev=2)` -> its folder, exported and committed.

    nbdev: 2 writes settings.ini, 3 writes [tool.nbdev], 0 neither. `notebooks` maps a file name below nbs/ to
    its cells. `export` runs nbdev's own command: `python` is the interpreter whose nbdev does it.
    """

    def build(
        nbdev: int = 2,
        name: str = "smallproj",
        notebooks: dict[str, list[str]] | None = None,
        folder: Path | None = None,
        export: bool = True,
        git: bool = True,
        python: Path | str = sys.executable,
    ) -> Path:
        project = folder or tmp_path / name
        project.mkdir(parents=True, exist_ok=True)
        (project / "pyproject.toml").write_text(
            (PYPROJECT + (NBDEV3 if nbdev == 3 else "")).format(name=name)
        )
        if nbdev == 2:
            (project / "settings.ini").write_text(SETTINGS.format(name=name))
        (project / ".gitignore").write_text("__pycache__/\n.ipynb_checkpoints/\n.fsdl/\n")
        (project / name).mkdir(exist_ok=True)
        (project / name / "__init__.py").write_text('__version__ = "0.0.1"\n')
        for file, cells in (EXAMPLE if notebooks is None else notebooks).items():
            write_notebook(project / "nbs" / file, cells)
        if export and nbdev:
            call = "from nbdev.doclinks import nbdev_export; nbdev_export.__wrapped__()"
            run(python, "-c", call, cwd=project)
        if git:
            commit_all(project)
        return project

    return build


@pytest.fixture(scope="session")
def nbdev3_python(tmp_path_factory) -> Path:
    """A Python with nbdev 3, in an environment of its own. Skips, saying so, where pip cannot make it."""
    folder = tmp_path_factory.mktemp("nbdev3") / "venv"
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    install = [str(python), "-m", "pip", "install", "-q", "nbdev>=3,<4"]
    result = subprocess.run(install, text=True, capture_output=True)
    if result.returncode:
        pytest.skip(f"nbdev 3 could not be installed: {result.stderr.strip()[-300:]}")
    return python


# --- remote machines and buckets -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sshd(tmp_path_factory) -> Iterator[Sshd]:
    """An sshd that the tests of a file share."""
    server = start_sshd(tmp_path_factory.mktemp("sshd"))
    yield server
    server.stop()


@pytest.fixture
def shell(sshd, monkeypatch):
    """A shell on the host that the tests of a file share."""
    from fsdl_dev.engines.transport.ssh import SshShell

    monkeypatch.setenv("FSDL_SSH_CONFIG", str(sshd.config))
    return SshShell("lab")


@pytest.fixture
def own_sshd(tmp_path, monkeypatch) -> Iterator[Sshd]:
    """An sshd of the test's own, which it may stop and cut: nothing is shared with other tests."""
    with reached_sshd(tmp_path / "sshd", monkeypatch) as server:
        yield server


@pytest.fixture
def storage(own_sshd, tmp_path):
    """A storage on the test's own host."""
    from fsdl_dev.engines.transport.ssh import SshShell
    from fsdl_dev.engines.transport.storage import open_storage

    return open_storage(str(tmp_path / "far 'größe'"), SshShell("lab"))


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """moto's S3 on loopback, and a bucket."""
    s3fs = pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", free_port())
    server.start()
    endpoint = f"http://127.0.0.1:{server._port}"
    keys = {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
    }
    with pytest.MonkeyPatch.context() as patch:
        for key, value in keys.items():
            patch.setenv(key, value)
        import botocore.session

        botocore.session.get_session().create_client("s3", endpoint_url=endpoint).create_bucket(Bucket="runs")
        s3fs.S3FileSystem.clear_instance_cache()  # one that an earlier test made knows another server
        yield endpoint
    server.stop()


# --- browser ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def chromium() -> str:
    if CHROMIUM is None:
        reason = (
            "no Chromium here: install it (Debian: apt-get install chromium) or `playwright install chromium`"
        )
        pytest.fail(reason) if os.environ.get("FSDL_REQUIRE_BROWSER") else pytest.skip(reason)
    return CHROMIUM


@pytest.fixture
def browser_page(chromium):
    """A fresh page of Chromium (playwright's) that reaches this machine only; its `said` has each complaint."""
    with open_page(1400, 1100) as page:
        yield page
