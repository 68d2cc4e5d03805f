"""A real run that makes no step for a while, and the command `on_end` of the settings once it has ended."""

import re

import pytest
from conftest import commit_all
from following import events, until

from fsdl_dev.api import launch
from fsdl_dev.cards.card import card_html, card_text, make_card
from fsdl_dev.core.errors import FsdlError

pytestmark = [pytest.mark.slow]
TRAIN = """\
import os, time
from fsdl_dev.core.events import current_writer
from fsdl_dev.core.event_kinds import Progress, Stage

ENOUGH = os.environ["FSDL_RUN_DIR"] + "/enough"


def training_step(step):
    while step == 12 and not os.path.exists(ENOUGH):
        time.sleep(0.05)


for step in range(20):
    training_step(step)
    time.sleep(0.05)
    current_writer().write(Progress(step=step, total=20, epoch=0, stage="train"))
print("all steps done")
"""


@pytest.fixture
def root(make_project, tmp_path):
    root = make_project(nbdev=0, notebooks={}, folder=tmp_path / "project", git=False)
    (root / "train.py").write_text(TRAIN)
    return root


def settings(root, line: str) -> None:
    pyproject = (root / "pyproject.toml").read_text()
    pyproject = re.sub(r"^on_end = .*\n", "", pyproject, flags=re.M)
    table = "[tool.fsdl_dev]\n"
    pyproject = pyproject if table in pyproject else f"{pyproject}\n{table}"
    (root / "pyproject.toml").write_text(pyproject.replace(table, f"{table}{line}\n", 1))
    commit_all(root)


def test_where_it_stands_and_who_hears_of_the_end(root):
    settings(root, "on_end = 'echo \"$FSDL_END_RUN, $FSDL_END_STATE, $FSDL_END_TEXT\" >> heard.txt'")
    run = launch("train.py", folder=root, no_test=True, say=None)
    until(lambda: events(run, "standstill"), lambda: run.tail(30))
    shown = until(lambda: "no step for" in (text := card_text(make_card(run), 200)) and text)
    assert "rank 0 in training_step, train.py line 10" in shown and " left" not in shown
    assert "<b>⚠</b>" in card_html(make_card(run))
    (run.path / "enough").touch()
    run.wait(progress=False)
    assert run.state == "succeeded" and "no step for" not in card_text(make_card(run), 200)
    assert make_card(run).printed == ["all steps done"]
    until((root / "heard.txt").exists)
    heard = (root / "heard.txt").read_text().splitlines()
    assert len(heard) == 1 and heard[0].startswith(f"{run.words}, succeeded, {run.words} succeeded: finished")


def test_a_command_that_fails_and_one_that_is_none(root):
    settings(root, 'on_end = "no-such-mailer ada"')
    (root / "train.py").write_text("raise ValueError('a bad value')\n")
    run = launch("train.py", folder=root, no_test=True, say=None)
    run.wait(progress=False)
    assert run.state == "failed"
    note = until(lambda: [event["text"] for event in events(run, "note") if "on_end" in event["text"]])
    assert note == ["The command on_end failed: exit status 127: no such command on the machine of the run."]
    assert note[0] in card_text(make_card(run), 200)
    settings(root, 'on_end = ["mail", "ada"]')
    with pytest.raises(FsdlError, match="on_end must be a text") as refused:
        launch("train.py", folder=root, no_test=True, say=None)
    assert "pyproject.toml" in str(refused.value)
