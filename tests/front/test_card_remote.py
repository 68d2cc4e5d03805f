"""A run on another machine, on the card and in the hands of its owner: behind a real sshd, and as it looks in a
browser.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from following import PATIENCE, until

import fsdl_dev
from fsdl_dev.cards.card import card_html, card_text, make_card
from fsdl_dev.cards.terminal import LogReader
from fsdl_dev.core.check import Check
from fsdl_dev.core.event_kinds import Accounting, Failure, Phase, Placed, Queue, Restart
from fsdl_dev.core.job import Job, LaunchRecord, Resources
from fsdl_dev.core.rundir import create_run_dir
from fsdl_dev.core.settings import find_project
from fsdl_dev.core.states import FINAL
from fsdl_dev.records.run import Run
from fsdl_dev.records.watch import Watch

TRAIN = """
import os, pathlib, sys, time
from fsdl_dev.core.events import current_writer
from fsdl_dev.core.event_kinds import Checkpoint
from fsdl_dev.train.loggers import log

from PIL import Image

folder = pathlib.Path(os.environ["FSDL_RUN_DIR"], "checkpoints")
folder.mkdir(exist_ok=True)
for step in range(3):
    log(step, val_loss=1 / (step + 1), story=f"<b>{step}</b>", **{"val/pictures": [[[step]], "no picture"]})
    log(step, pictures=[Image.new("L", (40, 30), step), Image.new("L", (40, 30), 255)])
    print("step", step, flush=True)
(folder / "best.ckpt").write_bytes(b"weights" * 100)
current_writer().write(Checkpoint(path="checkpoints/best.ckpt",
    step=2,
    metric="val_loss",
    value=1 / 3,
    mode="min",
    bytes=700,
    best=True,
))
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
print("the end", flush=True)
"""


@pytest.fixture
def far(own_sshd, tmp_path, monkeypatch):
    """A project, and a host behind sshd that is its target `lab`: (folder, sshd)."""
    monkeypatch.delenv("FSDL_STORE")
    folder = tmp_path / "a prøject"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    (folder / "pyproject.toml").write_text(own_sshd.target(tmp_path / "far"))
    return folder, own_sshd


@pytest.mark.slow
def test_a_run_elsewhere_is_a_run(far, tmp_path):
    """Its card, its log while it runs, its files and its end are had as if it ran here."""
    folder, _ = far
    run = fsdl_dev.launch(
        "train.py", args=[str(tmp_path / "go on")], on="lab", gpus=0, folder=folder, say=None
    )
    assert run.elsewhere and run.target.name == "lab"
    until(
        lambda: run.view.checkpoints.events and run.view.state == "running" or not run.view.alive,
        "no checkpoint came",
    )
    assert run.state == "running", run.status_line()
    shown = card_text(make_card(run), 200)
    assert " · lab" in shown and re.search(r"start: snapshot \S+ k?B in ", shown) and "○" not in shown, shown
    reader, lines = LogReader(run), []
    until(lambda: lines.extend(reader.poll()) or "step 2\n" in "".join(lines), "no line of its log came")
    assert "step 1" in run.logs() and not run.best.exists
    assert (
        "story: step 2 · 8 characters: <b>2</b>" in shown
        and "pictures: step 2 · 2 images of 40 x 30" in shown
    )
    assert "log(val/pictures=...) kept nothing" in shown, "it is no sample, and the training went on"
    page = card_html(make_card(run))
    assert page.count("data:image/png;base64") == 2 and "&lt;b&gt;2" in page, "before any file has come"

    (tmp_path / "go on").touch()
    run.wait(timeout=PATIENCE, progress=False)
    assert (
        run.state == "succeeded"
        and "the end" in run.logs()
        and [round(v, 2) for v in run.metrics.val_loss] == [1.0, 0.5, 0.33]
    )
    said = []
    assert "best.ckpt" in [file.name for file in run.fetch(tmp_path / "out", say=said.append)]
    assert (tmp_path / "out" / "best.ckpt").read_bytes() == b"weights" * 100 and run.best.exists
    assert [image.getpixel((0, 0)) for image in run.samples("pictures")[1].load()] == [1, 255]
    kept = {path.name for sample in run.samples() for path in sample.paths}
    assert len(kept) == 7 and kept == {path.name for path in (tmp_path / "out" / "samples").iterdir()}
    assert run.facts.samples["story"][2].files[0]["path"].startswith("samples/")
    assert run.cost["seconds"] > 0 and run.cost["slots"] >= 1


@pytest.mark.slow
def test_a_place_that_is_not_reached_is_said_on_the_card(far, tmp_path):
    """The watcher notices that the host is gone and that it is back, and the run is none the worse for it."""
    folder, server = far
    run = fsdl_dev.launch(
        "train.py", args=[str(tmp_path / "go on")], on="lab", gpus=0, folder=folder, say=None
    )
    until(lambda: run.view.state == "running" or not run.view.alive, "it did not start")
    watch = Watch()
    watch.add(run)
    try:
        server.stop()
        until(lambda: make_card(run).contact, "nothing was said")
        assert re.match(r"not reached since (\w+ )?\d\d:\d\d", make_card(run).contact) and run.known.alive
        assert "⚠ not reached since" in card_text(make_card(run), 200) and "⚠" in card_html(make_card(run))
        server.start()
        until(lambda: not make_card(run).contact, "it was said to be gone for ever")
        (tmp_path / "go on").touch()
        until(lambda: run.known.state in FINAL, "its end did not come")
        assert run.known.state == "succeeded"
    finally:
        watch.stop.set()


@pytest.mark.slow
def test_each_is_a_run_of_its_own(far, tmp_path):
    """One command, a run for each value, on another machine; the table says how they ended."""
    folder, _ = far
    (tmp_path / "go on").touch()
    environment = {**os.environ, "COLUMNS": "120"}
    command = [
        sys.executable,
        "-c",
        "import sys; from fsdl_dev.cli.main import main; sys.argv[0] = 'fsdl'; main()",
        "launch",
        "train.py",
        "--on",
        "lab",
        "--gpus",
        "0",
        "--each",
        "seed=1..3",
    ]
    dry = subprocess.run(
        [*command, "--dry-run", "--", str(tmp_path / "go on")],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (
        dry.returncode == 0
        and "Nothing was submitted. What lab (ssh) would get:" in dry.stdout
        and "#!/bin/sh" in dry.stdout
        and "--seed 3" in dry.stdout
    ), dry.stdout + dry.stderr
    assert not (folder / ".fsdl" / "runs").exists() or not list((folder / ".fsdl" / "runs").iterdir())
    done = subprocess.run(
        [*command, "--json", "--", str(tmp_path / "go on")],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout[done.stdout.index("[\n") :])
    assert (
        [run["state"] for run in found] == ["succeeded"] * 3
        and [run["params"]["seed"] for run in found] == [1, 2, 3]
        and len({run["tags"]["sweep"] for run in found}) == 1
    )


def stages(store: Path) -> list[Run]:
    """A run in each of its stages on a cluster, by the events that a worker and an observer write."""
    found = []
    for stage in ("sent", "queued", "environment", "refused", "trains"):
        made = create_run_dir(
            store,
            Job(
                "cell",
                "Train the language model",
                params={"lr": 3e-4},
                tags={"task": "lm"},
                resources=Resources(nodes=2, procs=4),
            ),
            LaunchRecord(target="lab", checks=(Check("a", "pass", ""),) * 9),
        )
        launcher, worker, observer = (made.writer(name) for name in ("launcher", "worker", "observer"))
        launcher.write(Phase(name="snapshot", state="start", text="12 of 340 files were new"))
        if stage != "sent":
            launcher.write(Phase(name="snapshot", state="end", bytes=84_000, seconds=0.4))
            made.set_state(launcher, "queued", "handed to lab")
            observer.write(
                Queue(
                    position=3,
                    start=time.time() + 1800,
                    reason="all 16 GPUs of partition gpu are taken",
                    engine_reason="Resources",
                )
            )
        if stage in ("environment", "refused", "trains"):
            made.set_state(worker, "starting", "2 nodes")
            worker.write(Placed(slots=[0, 1, 2, 3], procs=8, device="gpu", nodes=["n1", "n2"]))
            worker.write(
                Phase(name="environment", state="start", text="installing 34 packages from the lock")
            )
        if stage in ("refused", "trains"):
            worker.write(Phase(name="environment", state="end", seconds=12.0))
            worker.write(
                Phase(
                    name="gpu tests",
                    state="fail" if stage == "refused" else "end",
                    text="nbs/40_train.ipynb, cell 12",
                    seconds=3.0,
                )
            )
        if stage == "refused":
            made.writer("rank4", rank=4).write(
                Failure(
                    type="AssertionError",
                    message="flash attention differs",
                    node="n2",
                    frames=[],
                    traceback="",
                )
            )
            made.set_state(worker, "failed", "a GPU test failed")
        if stage == "trains":
            made.set_state(worker, "running", "8 processes")
            worker.write(Restart(count=1, reason="preempted by a run of higher priority", from_step=1200))
            observer.write(Accounting(gpu_seconds=14_400, source="sacct", lives=2))
        found.append(Run(made))
    return found


def test_card_in_a_browser(tmp_path, browser_page):
    """Every stage, on white and on dark, wide and narrow: nothing sticks out, every word can be read, the page
    has nothing to complain about.
    """
    html = "".join(card_html(make_card(run)) for run in stages(tmp_path))
    page = browser_page
    for width, colours in ((720, "background:#fff;color:#111"), (360, "background:#111;color:#ddd")):
        page.set_viewport_size({"width": width, "height": 900})
        page.set_content(f"<!doctype html><body style='margin:8px;{colours}'><div id='cards'>{html}</div>")
        text = page.locator("#cards").inner_text()
        for said in (
            "position 3 in the queue",
            "all 16 GPUs of partition gpu are taken",
            "installing 34 packages",
            "nbs/40_train.ipynb, cell 12",
            "n2",
            "preempted by a run",
            "4.0 GPU-hours",
        ):
            assert said in text
        assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth"), (
            f"the cards are wider than {width}"
        )
        shades = page.evaluate(
            "() => [...document.querySelectorAll('#cards td')].map(cell => getComputedStyle(cell).color)"
        )
        base = "rgb(17, 17, 17)" if width == 720 else "rgb(221, 221, 221)"
        assert base in shades and not set(shades) & {"rgb(0, 0, 0)", "rgb(255, 255, 255)"}
    assert not browser_page.said
    assert find_project(tmp_path)
