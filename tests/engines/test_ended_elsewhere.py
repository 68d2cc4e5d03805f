"""A run that ended while nobody here looked, and was launched at another desk: what its owner asks for comes
from where it was, or is said to be gone.
"""

import os
import shutil
import subprocess
import sys

import pytest
from following import PATIENCE, STEPS, until

import fsdl_dev
from fsdl_dev.cards.card import card_text, make_card
from fsdl_dev.core.errors import FsdlError
from fsdl_dev.snapshot.blobs import missing_content

pytestmark = pytest.mark.slow
FSDL = [sys.executable, "-c", "import sys; from fsdl_dev.cli.main import main; sys.argv[0] = 'fsdl'; main()"]


@pytest.fixture
def desks(own_sshd, tmp_path, monkeypatch):
    """A run that went to its end from the one desk, and the folder of the other: (the run, the folder)."""
    monkeypatch.delenv("FSDL_STORE")
    for place in ("office", "train"):
        folder = tmp_path / place / "prøject"
        folder.mkdir(parents=True)
        (folder / "steps.py").write_text(STEPS)
        (folder / "pyproject.toml").write_text(own_sshd.target(tmp_path / "far"))
    run = fsdl_dev.launch(
        "steps.py",
        args=[str(tmp_path / "enough")],
        on="lab",
        gpus=0,
        folder=tmp_path / "office" / "prøject",
        say=None,
    )
    until(lambda: run.view.checkpoints.events or not run.view.alive, lambda: run.status_line())
    (tmp_path / "enough").touch()
    assert run.wait(timeout=PATIENCE, progress=False).state == "succeeded", run.status_line()
    return run, folder


def test_an_ended_run_is_asked_about_once_more(desks, own_sshd):
    """What is left of it comes when it is shown; while its place is away, it is shown without."""
    run, train = desks
    there = fsdl_dev.load_run(run.words, train, say=None)
    assert not there.dir.result_file.exists()
    own_sshd.stop()
    assert there.view.state == "succeeded" and "succeeded" in card_text(make_card(there), 100)
    assert not there.dir.result_file.exists()
    own_sshd.start()

    def showing_brings_it() -> bool:
        shown = subprocess.run(
            [*FSDL, "show", run.words],
            cwd=train,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env={**os.environ, "COLUMNS": "120"},
        )
        assert shown.returncode == 0 and "succeeded" in shown.stdout, shown.stdout + shown.stderr
        return there.dir.result_file.exists()

    until(
        showing_brings_it, "what is left of it never came"
    )  # a place that takes longer than two seconds is not waited for
    assert "finished" in "".join(there.tail())


def test_its_snapshot_comes_from_where_it_was(desks, tmp_path):
    """Its files, its environment and its checkpoint are had at a desk that never had them."""
    run, train = desks
    there = fsdl_dev.load_run(run.words, train, say=None)
    assert there.store != run.store and "steps.py" in there.snapshot.files
    wanted = {entry["sha256"]: path for path, entry in there.snapshot.files.items()}
    assert missing_content(there.store, wanted) == wanted
    assert there.snapshot.environment == run.snapshot.environment and there.snapshot.diff == run.snapshot.diff
    assert (
        there.snapshot.lay_out(tmp_path / "again") / "steps.py"
    ).read_text() == STEPS and not missing_content(there.store, wanted)
    on = fsdl_dev.launch(resume=there.words, on="lab", gpus=0, folder=train, say=None).wait(
        timeout=PATIENCE, progress=False
    )
    assert on.state == "succeeded" and "resumed from" in on.logs(), on.status_line()


def test_what_is_gone_is_said_to_be_gone(desks, own_sshd, tmp_path):
    """Somebody cleared the storage, or the place is away: a plain sentence, the place, and what to do."""
    run, train = desks
    there = fsdl_dev.load_run(run.words, train, say=None)
    snapshot = there.snapshot
    for part in ("blobs", "packs"):
        shutil.rmtree(tmp_path / "far" / part, ignore_errors=True)
    with pytest.raises(FsdlError, match="neither here nor where the run was") as told:
        snapshot.lay_out(tmp_path / "again")
    assert str(tmp_path / "far") in told.value.where and told.value.fix
    own_sshd.stop()
    with pytest.raises(FsdlError) as told:
        _ = snapshot.environment
    assert "lab" in f"{told.value.what} {told.value.where}" and told.value.fix
