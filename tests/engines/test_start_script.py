"""The start script with real shells, real Pythons and the real worker."""

import json
import shutil
import signal
import subprocess
import sys
import venv

import pytest
from far_folder import LOCK, FarFolder, python_of, wait_for

from fsdl_dev.core.events import read_events
from fsdl_dev.core.rundir import read_json
from fsdl_dev.worker.failures import explain_failure

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a remote machine is Linux")
SHELLS = ["sh", "bash", "bash --posix", "dash", "busybox sh", "zsh"]
OLD = python_of("2.7", "3.6", "3.9", "3.10")
NEW = python_of("3.12", "3.13")


@pytest.fixture
def far(tmp_path):
    folder = FarFolder(tmp_path)
    yield folder
    folder.close()


@pytest.mark.parametrize("shell", SHELLS)
def test_any_posix_shell_becomes_the_worker(far, shell):
    if shutil.which(shell.split()[0]) is None:
        pytest.skip(f"no {shell.split()[0]} here")
    run = far.make("import os, fsdl_dev\nprint(os.environ['WORD'], os.getcwd(), fsdl_dev.__file__)")
    state = far.finish(run, far.fields(env={"WORD": "süß & 'quoted' $HOME `id`"}), shell=shell)
    assert state == "succeeded", far.log(run)
    said = run.log(0).read_text()
    assert said.startswith("süß & 'quoted' $HOME `id` ") and str(far.unpacked) in said
    assert read_json(run.result_file)["state"] == "succeeded"


def test_fsdl_dev_is_unpacked_once_by_eight_runs_at_once(far):
    runs = [far.make() for _ in range(8)]
    children = [far.start(run, far.fields(), command="true") for run in runs]
    assert [child.wait(300) for child in children] == [0] * 8
    assert sorted(path.name for path in far.runtime.parent.iterdir()) == sorted(
        [far.runtime.name, far.unpacked.name, far.functions.name]
    )
    stamp = (far.unpacked / "fsdl_dev" / "__init__.py").stat().st_ino
    assert far.finish(far.make(), far.fields(), command="true") == "queued"
    assert (far.unpacked / "fsdl_dev" / "__init__.py").stat().st_ino == stamp
    assert list((far.unpacked / "fsdl_dev" / "core" / "__pycache__").glob("*.pyc"))


@pytest.mark.parametrize("minor", sorted(NEW))
def test_a_bare_python_of_another_version_is_enough(far, tmp_path, minor):
    """Nothing is installed there: neither fsdl_dev nor psutil."""
    python = tmp_path / "bare" / "bin" / "python"
    subprocess.run([NEW[minor], "-m", "venv", "--without-pip", tmp_path / "bare"], check=True, timeout=300)
    run = far.make("import sys\nprint(sys.version_info[:2])")
    assert far.finish(run, far.fields(python=str(python))) == "succeeded", far.log(run)
    assert run.log(0).read_text().strip() == str(tuple(map(int, minor.split("."))))


@pytest.mark.parametrize("minor", sorted(OLD))
def test_a_python_that_is_too_old_fails_the_run_in_plain_words(far, minor):
    run = far.make()
    assert far.finish(run, far.fields(python=str(OLD[minor]))) == "failed"
    failure = explain_failure(run)
    assert (
        f"Python {minor}" in failure.message
        and "3.11 or newer is needed" in failure.message
        and 'python = "' in failure.command
    )
    assert (
        read_json(run.result_file)["reason"] == run.last_state()["reason"]
        and "3.11 or newer" in run.last_state()["reason"]
    )


def test_no_python_fails_the_run_in_plain_words(far):
    run = far.make()
    assert far.finish(run, far.fields(python="/nö/such place/python3")) == "failed"
    assert run.last_state()["reason"] == "There is no Python at /nö/such place/python3."
    assert explain_failure(run).command.startswith('python = "')


def test_a_python_of_the_home_folder(far, tmp_path):
    home = tmp_path / "home of 'me'"
    venv.create(home / "my env", symlinks=True)
    run = far.make("import sys\nprint(sys.prefix)")
    assert (
        far.finish(run, far.fields(python="~/my env/bin/python"), environment={"HOME": str(home)})
        == "succeeded"
    ), far.log(run)
    assert run.log(0).read_text().strip() == str(home / "my env")


def test_setup_lines_are_bash_of_a_login(far, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / ".profile").write_text("export FROM_PROFILE=yes\nmodule() { export MODULE=$2; }\n")
    run = far.make(
        "import os\nprint(os.environ['FROM_PROFILE'], os.environ['MODULE'], os.environ['MORE'],"
        " os.environ['WORD'])"
    )
    setup = (
        "module load cuda/12.4",
        "if [[ $MODULE == cuda* ]]; then",
        "  declare -a list=(a b); export MORE=${list[1]}",
        "fi",
    )
    assert (
        far.finish(run, far.fields(setup=setup, env={"WORD": "kept"}), environment={"HOME": str(home)})
        == "succeeded"
    ), far.log(run)
    assert run.log(0).read_text().strip() == "yes cuda/12.4 b kept"


def test_a_damaged_runtime_fails_the_run(far):
    far.runtime.chmod(0o644)
    far.runtime.write_bytes(far.runtime.read_bytes()[:1000])
    run = far.make()
    assert far.finish(run, far.fields()) == "failed"
    assert "could not be unpacked" in run.last_state()["reason"] and not far.unpacked.exists()


def test_a_signal_reaches_the_worker(far):
    run = far.make("import time\nprint('up', flush=True)\ntime.sleep(3000)")
    child = far.start(run, far.fields())
    wait_for(lambda: run.log(0).exists() and "up" in run.log(0).read_text())
    child.send_signal(signal.SIGTERM)
    child.wait(300)
    assert run.state() == "cancelled", far.log(run)


def test_what_is_printed_reads_as_json_whatever_is_in_it(far):
    """Control characters, quotes and backslashes in what a failing tool said."""
    run = far.make()
    script = far.script(run, far.fields(python="/no")).rpartition("\nneed_python ")[0]
    (run.path / "start.sh").write_text(
        script
        + "\nfail \"$(printf 'a\\ttab, \"quotes\", back\\\\slash, \\033[1mbold\\033[0m\\001')\" 'two\nlines'"
        ' "don\'t"\n'
    )
    subprocess.run(["sh", run.path / "start.sh"], timeout=240, capture_output=True)
    reason = run.last_state()["reason"]
    assert reason == 'a tab, "quotes", back\\slash, [1mbold[0m' and explain_failure(run).command == "don't"
    assert all(json.loads(line) for line in (run.events / "worker.jsonl").read_text().splitlines())


def test_the_script_needs_few_processes(far):
    """Once fsdl_dev is unpacked: one Python that says its version, besides the worker."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("no strace here")
    far.finish(far.make(), far.fields(), command="true")
    run = far.make()
    far.script(run, far.fields(), command=f"{shutil.which('true')}")
    done = subprocess.run(
        [strace, "-ff", "-o", run.path / "calls", "-e", "trace=execve", "sh", run.path / "start.sh"],
        capture_output=True,
        text=True,
        timeout=240,
    )
    started = [
        line
        for file in run.path.glob("calls.*")
        for line in file.read_text().splitlines()
        if "execve(" in line and "= 0" in line
    ]
    assert done.returncode == 0 and len(started) == 3, started


def test_shellcheck_has_nothing_to_say(far):
    if shutil.which("shellcheck") is None:
        pytest.skip("no shellcheck here (Debian: apt-get install shellcheck)")
    flavours = [
        dict(),
        dict(environment="lock"),
        dict(setup=("module load x",), env={"A": "b c"}),
        *(
            dict(environment="image", image="a/b:1", container=engine, mounts=("/data:/data:ro",))
            for engine in ("docker", "podman", "apptainer")
        ),
    ]
    for more in flavours:
        run = far.make()
        far.storage.joinpath("x.sh").write_text(
            far.script(run, far.fields(**more), {**LOCK, "packages": {"coolname": "2.2.0"}})
        )
        for text in (far.storage / "x.sh", far.functions):
            done = subprocess.run(
                ["shellcheck", "-S", "warning", "-e", "SC2034", text],
                capture_output=True,
                text=True,
                timeout=240,
            )
            assert done.returncode == 0, done.stdout
            for shell in ("dash", "bash"):
                assert subprocess.run([shell, "-n", text], timeout=240).returncode == 0


def test_a_person_can_read_the_script(far):
    """What differs from run to run, and one command each for the rest."""
    run = far.make()
    text = far.script(run, far.fields(env={"WORD": "a"}, setup=("module load cuda/12.4",)))
    assert (
        len(text.splitlines()) <= 40
        and "() {" not in text
        and text.splitlines()[-1] == 'exec "$PYTHON" -P -m fsdl_dev.worker.worker "$RUN"'
    )


@pytest.mark.parametrize("shell", SHELLS)
def test_without_its_functions_a_run_fails_in_plain_words(far, shell):
    if shutil.which(shell.split()[0]) is None:
        pytest.skip(f"no {shell.split()[0]} here")
    far.functions.unlink()
    run = far.make()
    assert far.finish(run, far.fields(), shell=shell) == "failed"
    assert (
        read_json(run.result_file)["reason"]
        == run.last_state()["reason"]
        == "fsdl_dev is not in the storage, or cannot be read there: launch again"
    )
    assert "launch again" in explain_failure(run).text() and not run.log(0).exists()


def test_a_second_life_starts_again(far):
    """A requeued run goes through the same script in its next allocation."""
    run = far.make("print('life')")
    assert far.finish(run, far.fields(), command="exit 85") == "queued"
    assert far.finish(run, far.fields()) == "succeeded", far.log(run)
    assert [event["state"] for event in read_events(run.events) if event["kind"] == "state"][
        -1
    ] == "succeeded"
