"""Cells that JupyterLab's server runs (the extension jupyter-server-nbmodel, with a shared document): no cell ids reach
the kernel then, and the agreement of kernel and file is judged by the cells' text.
"""

import os
import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import LabPage, browser_page, jupyterlab
from playwright.sync_api import expect
from repository import ROOT

import fsdl_dev

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("chromium")]
CELLS = [
    "#| default_exp study",
    "%load_ext fsdl_dev",
    "#| export\nRATE = 0.1\n\n\ndef fit():\n    return RATE * 2",
    "%%fsdl_launch --no-test --wait --as run\nprint('fitted', fit())",
    "from fsdl_dev.agreement.kernel import install_record\n"
    "print('ids:', {run.cell_id for run in install_record(get_ipython()).runs})",
]


@pytest.fixture(scope="session")
def serving_python(tmp_path_factory) -> Path:
    "A Python whose JupyterLab runs cells in its server, over the packages of this one; skips where pip cannot."
    folder = tmp_path_factory.mktemp("serving") / "venv"
    venv.create(folder)
    python = folder / "bin" / "python"
    own = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    (own / "base.pth").write_text(sysconfig.get_path("purelib") + "\n")
    words = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q"]
    done = subprocess.run(
        [*words, "jupyter-server-nbmodel>=0.2.9", "jupyter-collaboration>=5"], text=True, capture_output=True
    )
    if done.returncode:
        pytest.skip(f"jupyter-server-nbmodel could not be installed: {done.stderr.strip()[-300:]}")
    return python


@pytest.fixture
def lab(make_project, serving_python, tmp_path, monkeypatch) -> Iterator[LabPage]:
    monkeypatch.delenv("FSDL_STORE")
    root, home = make_project(notebooks={"00_study.ipynb": CELLS}), tmp_path / "home"
    home.mkdir()
    share = os.path.join(sys.prefix, "share", "jupyter")
    places = {
        "JUPYTER_PATH": share,
        "JUPYTERLAB_DIR": os.path.join(share, "lab"),
        "JUPYTER_CONFIG_PATH": os.path.join(sys.prefix, "etc", "jupyter"),
        "PYTHONPATH": str(ROOT),
    }
    with jupyterlab(root, home, serving_python, **places) as (address, token), browser_page() as page:
        page.asked = []
        page.on("request", lambda request: page.asked.append(request.url))
        lab = LabPage(page, address, token).open("nbs/00_study.ipynb")
        lab.root = root
        yield lab


def ran(lab: LabPage, *places: int) -> None:
    for at in places:
        lab.start_cell(at)
        expect(lab.cell(at).locator(".jp-InputPrompt")).to_have_text(re.compile(r"\[\d+\]:"))


def test_launch_and_refusal(lab):
    ran(lab, 1, 2, 3, 4)
    assert any("/execute" in url for url in lab.page.asked), "the server ran the cells"
    expect(lab.cell(4)).to_contain_text("ids: {None}")
    (first,) = fsdl_dev.runs(folder=lab.root)
    assert first.state == "succeeded" and "fitted 0.2" in fsdl_dev.load_run(first.id, lab.root).logs()

    # typed and not run: the kernel's code is not the file's
    lab.cell(2).locator(".cm-content").click()
    lab.page.keyboard.press("Control+a")
    lab.page.keyboard.insert_text(CELLS[2].replace("0.1", "0.3"))
    lab.page.keyboard.press("Escape")
    lab.save()
    lab.start_cell(3)
    expect(lab.cell(3)).to_contain_text("Not launched")
    expect(lab.cell(3)).to_contain_text("cell 3")
    lab.start_cell(2)
    lab.start_cell(3)
    expect(lab.cell(3)).not_to_contain_text("Not launched")
    expect(lab.cell(3)).to_contain_text(re.compile("queued|running|succeeded"))
    newest = next(row for row in fsdl_dev.runs(folder=lab.root) if row.id != first.id)
    again = fsdl_dev.load_run(newest.id, lab.root).wait(progress=False)
    assert "fitted 0.6" in again.logs()
