"""The card in a real JupyterLab: live while the kernel is busy, cancelled by its button, and readable without a
kernel.
"""

import json
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from lab import PATIENCE, LabPage, browser_page, jupyterlab
from playwright.sync_api import expect
from repository import SUPPORT

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("chromium")]
FEED = SUPPORT / "feed_run.py"
STEP = (
    "() => [...document.querySelectorAll('.jp-NotebookPanel:not(.lm-mod-hidden)"
    " .jp-Cell')][%d].innerText.match(/step ([\\d,]+)/)?.[1]"
)

BESIDE = "(element, part) => getComputedStyle(element, part).content"


def feed(store: Path, *options: str) -> tuple[subprocess.Popen, str]:
    "A process that plays a worker, and the name of its run."
    process = subprocess.Popen(
        [sys.executable, str(FEED), str(store), *options], stdout=subprocess.PIPE, text=True
    )
    return process, process.stdout.readline().strip()


def write_notebook(path: Path, *cells: str) -> None:
    notebook = nbformat.v4.new_notebook(
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    )
    notebook.cells = [nbformat.v4.new_code_cell(source) for source in cells]
    nbformat.write(notebook, path)


def outputs(path: Path, index: int) -> list[dict]:
    "What a saved notebook's cell shows, without outputs that are empty."
    return [
        output["data"]
        for output in json.loads(path.read_text())["cells"][index]["outputs"]
        if output.get("data")
    ]


def test_card_lives_and_stays(tmp_path):
    """Two cards at once: they move while a cell runs, one is cancelled by its button meanwhile, and both are
    readable without a kernel.
    """
    root, home = tmp_path / "a föl der", tmp_path / "home"
    root.mkdir()
    home.mkdir()
    first, first_id = feed(root / ".fsdl", "--steps", "100000", "--until", str(root / "enough"))
    second, second_id = feed(root / ".fsdl", "--steps", "100000")
    write_notebook(
        root / "study.ipynb",
        "import time\nimport fsdl_dev.cards.live\nfrom fsdl_dev.records.run import open_run\n"
        f"a, b = open_run('.fsdl', {first_id!r}),"
        f" open_run('.fsdl', {second_id!r})",
        "a",
        "b",
        "import os\nwhile not os.path.exists('go on'): time.sleep(0.01)\nprint('finished')",
    )
    try:
        with jupyterlab(root, home) as (address, token), browser_page() as page:
            lab = LabPage(page, address, token).open("study.ipynb")
            for index in (0, 1, 2):
                lab.start_cell(index)
            for index in (1, 2):
                expect(lab.cell(index).locator("button.jupyter-button")).to_be_visible()
            lab.start_cell(3)
            expect(lab.cell(3).locator(".jp-InputPrompt")).to_have_text("[*]:")

            # both cards go on while the kernel runs a cell
            for index in (1, 2):
                before = page.evaluate(STEP % index)
                page.wait_for_function(
                    f"was => {{ const now = ({STEP % index})(); return now && now !== was }}", arg=before
                )
            lab.cell(2).locator("img:visible").first.wait_for()

            # saved in the middle, the body is HTML that anyone can read
            lab.save()
            body = outputs(root / "study.ipynb", 2)[0]
            assert set(body) == {"text/html", "text/plain"} and "running" in "".join(body["text/html"])

            # the button works while the cell is still running
            lab.cell(2).locator("button.jupyter-button").click()
            expect(lab.cell(2)).to_contain_text("cancelled")
            expect(lab.cell(3).locator(".jp-InputPrompt")).to_have_text("[*]:")
            assert second.wait(PATIENCE) == 0

            # the end: a final card, and no widget left
            (root / "enough").touch()
            expect(lab.cell(1)).to_contain_text("succeeded")
            for index in (1, 2):
                expect(lab.cell(index).locator("button.jupyter-button")).to_have_count(0)
            (root / "go on").touch()
            lab.idle()
            lab.no_broken_widgets()
            lab.save()
            lab.command("kernelmenu:shutdown")

            for index, state in ((1, "succeeded"), (2, "cancelled")):
                shown = outputs(root / "study.ipynb", index)
                assert [set(data) for data in shown] == [{"text/html", "text/plain"}]
                assert state in "".join(shown[0]["text/html"]) and "data:image/svg+xml" in "".join(
                    shown[0]["text/html"]
                )
            assert not [line for line in page.said if "widget" in line.lower()]

        # opened anew, in another server and browser, with no kernel that knows anything of these runs
        with jupyterlab(root, home) as (address, token), browser_page() as page:
            lab = LabPage(page, address, token).open("study.ipynb", workspace="reader", kernel=False)
            expect(lab.cell(1)).to_contain_text("succeeded")
            expect(lab.cell(2)).to_contain_text("cancelled")
            expect(lab.cell(1).locator("img").first).to_be_visible()
            lab.cell(1).locator(".fsdl-plot b").nth(20).hover()  # values under the pointer, without a kernel
            shown = lab.cell(1).locator(".fsdl-plot b").nth(20).evaluate(BESIDE, "::after")
            assert shown.startswith('"step ') and "train" in shown
            lab.no_broken_widgets()
    finally:
        for process in (first, second):
            process.kill()
            process.wait()
            process.stdout.close()


def test_card_of_a_kernel_that_is_gone(tmp_path):
    """Cards of runs that go on, after a restart of their kernel and in a server without one: they say as of when
    they are and how to go on, without a dead button or a widget's error.
    """
    root, home = tmp_path / "project", tmp_path / "home"
    root.mkdir()
    home.mkdir()
    fed = [feed(root / ".fsdl", "--steps", "100000") for _ in range(2)]
    write_notebook(
        root / "study.ipynb",
        "import fsdl_dev.cards.live\nfrom fsdl_dev.records.group import RunGroup\n"
        f"from fsdl_dev.records.run import open_run\nrun, *_ = both = RunGroup(open_run('.fsdl', name)"
        f" for name in {[name for _, name in fed]!r})",
        "run",
        "both",
    )

    def gone(lab) -> None:
        for index, command in ((1, "%fsdl_attach"), (2, "%fsdl_runs")):
            expect(lab.cell(index).locator(".fsdl-stale")).to_contain_text("as of")
            expect(lab.cell(index).locator(".fsdl-stale")).to_contain_text(command)
            expect(lab.cell(index)).to_contain_text("running")
        expect(lab.panel.locator("button.jupyter-button:visible")).to_have_count(0)
        expect(lab.panel.locator(".jupyter-widgets:visible")).to_have_count(0)

    try:
        with jupyterlab(root, home) as (address, token), browser_page() as page:
            lab = LabPage(page, address, token).open("study.ipynb")
            for index in (0, 1, 2):
                lab.start_cell(index)
            for index in (1, 2):
                expect(lab.cell(index).locator("button.jupyter-button")).to_be_visible()
                shown = lab.cell(index).locator(".fsdl-stale").evaluate(BESIDE, "::before")
                assert "not updated" not in shown
            page.evaluate(
                "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()"
            )
            lab.idle()
            gone(lab)
            assert "not updated" in lab.cell(1).locator(".fsdl-stale").evaluate(BESIDE, "::before")
            lab.save()
        with jupyterlab(root, home) as (address, token), browser_page() as page:
            lab = LabPage(page, address, token).open("study.ipynb", workspace="reader", kernel=False)
            gone(lab)
    finally:
        for process, _ in fed:
            process.kill()
            process.wait()
            process.stdout.close()


def test_card_in_a_tab_that_was_opened_again(tmp_path):
    """The stored card of a page that was loaded anew hears nothing of the run: the widget shows the living one in its
    place, to its end; without the widget the stored one is there again, and says that it is old.
    """
    root, home = tmp_path / "project", tmp_path / "home"
    root.mkdir()
    home.mkdir()
    process, name = feed(root / ".fsdl", "--steps", "100000")
    write_notebook(
        root / "study.ipynb",
        "import fsdl_dev.cards.live\nfrom fsdl_dev.records.run import open_run\n"
        f"run = open_run('.fsdl', {name!r})",
        "run",
    )
    state = ".jp-OutputArea [role=group]:visible"
    try:
        with jupyterlab(root, home) as (address, token), browser_page() as page:
            lab = LabPage(page, address, token).open("study.ipynb")
            lab.start_cell(0)
            lab.start_cell(1)
            expect(lab.cell(1).locator("button.jupyter-button")).to_be_visible()
            expect(lab.cell(1).locator(state)).to_have_count(1)
            lab.save()
            lab.open("study.ipynb", workspace="again", kernel=False)
            expect(lab.cell(1).locator("button.jupyter-button")).to_be_visible()
            expect(lab.cell(1).locator(state)).to_have_count(1)
            before = page.evaluate(STEP % 1)
            page.wait_for_function(f"was => {{ const now = ({STEP % 1})(); return now !== was }}", arg=before)
            lab.cell(1).locator("button.jupyter-button").click()
            expect(lab.cell(1).locator(state)).to_contain_text("cancelled")
            expect(lab.cell(1).locator(state)).to_have_count(1)
            expect(lab.cell(1)).to_contain_text("To store this one: %fsdl_attach")
            lab.no_broken_widgets()
            page.evaluate(
                "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()"
            )
            expect(lab.cell(1).locator(state)).to_contain_text("running")
            assert "not updated" in lab.cell(1).locator(".fsdl-stale:visible").evaluate(BESIDE, "::before")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
