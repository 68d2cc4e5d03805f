"""The main job as `make quickstart` runs it, in a clone: trained by two processes, brought back, over 95 % of
held-out digits right.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import nbformat
import pytest
from conftest import commit_all
from lab import LabPage, browser_page, jupyterlab
from playwright.sync_api import expect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


def test_quickstart(working_copy, tmp_path):
    clone = tmp_path / "clone"
    shutil.copytree(working_copy, clone, symlinks=True)
    commit_all(clone)  # as in a clone: what is committed counts as tested
    environment = {**os.environ, "JUPYTER_DATA_DIR": str(tmp_path / "jupyter"), "PYTHONPATH": str(clone)}
    command = [sys.executable, "tools/quickstart.py", "nbs/tutorials/00_quickstart.ipynb"]
    with subprocess.Popen(
        command,
        cwd=clone,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=1200)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, said[-6000:]
    accuracies = [float(text) for text in re.findall(r"(\d\d\.\d+) ?%", said)]
    assert accuracies and max(accuracies) > 95, said[-6000:]

    places = dict(re.findall(r"^  (executed notebook|run directory|curve) +(.+)$", said, re.M))
    executed, run, curve = (Path(places[name]) for name in ("executed notebook", "run directory", "curve"))
    assert (
        executed.is_relative_to(clone) and curve.parent == run and curve.read_bytes().startswith(b"\x89PNG")
    )
    shown = [
        output for cell in nbformat.read(executed, as_version=4).cells for output in cell.get("outputs", [])
    ]
    assert not [output for output in shown if output.output_type == "error"]
    assert any("succeeded" in output.get("data", {}).get("text/html", "") for output in shown), (
        "the executed notebook holds the finished card"
    )
    assert list((run / "checkpoints").glob("*.ckpt")) and len(list((run / "logs").glob("rank*.log"))) == 2


@pytest.mark.usefixtures("chromium")
def test_quickstart_by_clicking(working_copy, tmp_path, monkeypatch):
    "The same in JupyterLab: Run, Run All Cells, and the card ends as succeeded, without a complaint of the page."
    monkeypatch.delenv("FSDL_STORE")
    clone, home = tmp_path / "clone", tmp_path / "home"
    shutil.copytree(working_copy, clone, symlinks=True)
    commit_all(clone)
    home.mkdir()
    with jupyterlab(clone, home, PYTHONPATH=str(clone)) as (address, token), browser_page() as page:
        lab = LabPage(page, address, token).open("nbs/tutorials/00_quickstart.ipynb")
        lab.command("editmenu:clear-all")
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        code = lab.panel.locator(".jp-CodeCell .jp-InputPrompt")
        expect(code.last).to_have_text(re.compile(r"\[\d+\]:"), timeout=900_000)
        expect(lab.panel.locator(".jp-OutputArea [role=group]:visible").first).to_contain_text("succeeded")
        assert not lab.panel.locator(
            ".jp-RenderedText[data-mime-type='application/vnd.jupyter.error']"
        ).count()
        accuracies = re.findall(r"(\d\d\.\d+) ?%", lab.panel.inner_text())
        assert accuracies and max(map(float, accuracies)) > 95, accuracies
        lab.no_broken_widgets()
        assert not page.said, page.said
