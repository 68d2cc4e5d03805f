"""The mark in a real JupyterLab: whether kernel, file and package agree, in each state of a notebook."""

import json
import os
import re
from pathlib import Path

import pytest
from lab import LabPage, browser_page, jupyterlab
from playwright.sync_api import expect
from repository import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("chromium")]
CELLS = [
    "#| default_exp train",
    "%load_ext fsdl_dev",
    "#| export\nRATE = 0.1",
    "#| export\ndef fit():\n    return RATE * 2",
    "helper = 3",
    "%%fsdl_launch --param lr=1\n#| eval: false\nprint(fit(), helper, lr)",
]
AGREE = "✓ kernel, file and package agree"
BEHIND = "✓ kernel and file agree; a launch exports the package"
PICTURES = os.environ.get("PICTURES")  # a folder: the states as a person sees them


class Marked(LabPage):
    "A notebook with the mark."

    @property
    def status(self):
        return self.page.locator(".fsdl-status button")

    def words(self) -> dict[int, str]:
        "The word in the margin of each cell that has one."
        marks = {n: self.cell(n).locator(".fsdl-mark") for n in range(self.panel.locator(".jp-Cell").count())}
        return {n: mark.inner_text() for n, mark in marks.items() if mark.count()}

    def says(self, text: str, words: dict[int, str]) -> None:
        "Wait until the status bar has a text, and see that the margin has these words."
        expect(self.status).to_have_text(text)
        assert self.words() == words, (self.words(), words)

    def run(self, *numbers: int) -> None:
        for number in numbers:
            self.start_cell(number)
            self.idle()

    def edit(self, number: int, text: str) -> None:
        "Replace the text of a cell, as a person types it."
        self.cell(number).locator(".cm-content").click()
        self.page.keyboard.press("Control+a")
        self.page.keyboard.insert_text(text)
        self.page.keyboard.press("Escape")

    def active(self) -> int:
        return self.page.evaluate("() => window.jupyterapp.shell.currentWidget.content.activeCellIndex")

    def picture(self, name: str) -> None:
        if PICTURES:
            self.page.screenshot(path=Path(PICTURES, f"{name}.png"))


def link(home: Path) -> None:
    "Put the extension where JupyterLab looks for a user's own."
    folder = home / "data" / "labextensions"
    folder.mkdir(parents=True)
    (folder / "fsdl_dev").symlink_to(ROOT / "labextension")


@pytest.fixture
def project(make_project):
    other = ["#| default_exp other", "%load_ext fsdl_dev", "#| export\nSIZE = 3"]
    return make_project(notebooks={"00_train.ipynb": CELLS, "01_other.ipynb": other})


def test_states_of_a_notebook(project, tmp_path):
    home = tmp_path / "home"
    link(home)
    with jupyterlab(project, home) as (address, token), browser_page() as page:
        lab = Marked(page, address, token).open("nbs/00_train.ipynb")
        lab.says("fsdl_dev is not loaded in this kernel", {})
        lab.status.click()
        assert lab.active() == 1
        lab.run(1)
        lab.says("≠ cell 3 “RATE” has not run in this kernel", {2: "not run", 3: "not run"})
        lab.picture("never")
        lab.run(2, 3)
        lab.says(AGREE, {})
        lab.picture("agree")

        # edited in the page only, then saved, then run
        lab.edit(3, "#| export\ndef fit():\n    return RATE * 3")
        lab.says("≠ cell 4 “fit” was edited after it ran, and is not saved", {3: "edited"})
        lab.save()
        lab.says("≠ cell 4 “fit” was edited after it ran", {3: "edited"})
        assert "run it again" in lab.cell(3).locator(".jp-InputPrompt").get_attribute("title")
        lab.picture("edited")
        lab.page.evaluate("() => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = 0 }")
        lab.status.click()
        assert lab.active() == 3
        lab.run(3)
        lab.says(BEHIND, {})

        # run and not saved; a comment alone is no difference
        lab.edit(3, "#| export\ndef fit():\n    return RATE * 4")
        lab.run(3)
        lab.says("≠ cell 4 “fit” ran, and is not saved: press Ctrl+S", {3: "not saved"})
        lab.picture("unsaved")
        lab.save()
        lab.says(BEHIND, {})
        lab.edit(3, "#| export\ndef fit():  # four times\n    return RATE * 4")
        lab.save()
        lab.says(BEHIND, {})
        lab.edit(3, "#| export\ndef fit():\n    return RATE / 0")
        lab.save()
        lab.run(3)

        # a cell that fails
        lab.edit(2, "#| export\nRATE = 1 / 0")
        lab.save()
        lab.run(2)
        lab.says("≠ cell 3 “RATE” failed when it ran last", {2: "failed"})
        lab.edit(2, "#| export\nRATE = (1")
        lab.save()
        expect(lab.cell(2).locator(".fsdl-mark")).to_have_text("syntax")
        lab.edit(2, "#| export\nRATE = 0.1")
        lab.save()
        lab.run(2)
        lab.says(BEHIND, {})

        # a deleted cell whose name lives, which the launch cell uses
        lab.run(4)
        lab.page.evaluate("() => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = 4 }")
        lab.command("notebook:delete-cell")
        lab.says(BEHIND, {})  # not saved: the file has it
        lab.save()
        expect(lab.status).to_contain_text("uses `helper`, whose cell was deleted")
        assert lab.words() == {4: "name gone"}
        lab.picture("deleted")

        # a new cell that is exported, before and after it ran
        lab.page.evaluate("() => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = 3 }")
        lab.command("notebook:insert-cell-below")
        lab.edit(4, "#| export\nhelper = 3")
        lab.says("≠ the cell “helper = 3” has not run, and is not saved", {4: "not run", 5: "name gone"})
        lab.run(4)
        lab.save()
        lab.says(BEHIND, {})

        # the kernel restarts
        restart = "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()"
        page.evaluate(restart)
        lab.idle()
        lab.says("fsdl_dev is not loaded in this kernel", {})
        lab.run(1)
        lab.says("≠ cell 3 “RATE” has not run in this kernel", {2: "not run", 3: "not run", 4: "not run"})

        # a page that is loaded anew asks the kernel
        lab.open("nbs/00_train.ipynb", workspace="again")
        lab.says("≠ cell 3 “RATE” has not run in this kernel", {2: "not run", 3: "not run", 4: "not run"})

        # dark, and narrow
        lab.command("apputils:change-theme", theme="JupyterLab Dark")
        page.locator("body[data-jp-theme-light=false]").wait_for(state="attached")
        lab.picture("dark")
        page.set_viewport_size({"width": 600, "height": 800})
        expect(lab.status).to_be_visible()
        box, bar = lab.status.bounding_box(), page.locator("#jp-main-statusbar").bounding_box()
        assert box["x"] + box["width"] <= bar["x"] + bar["width"] + 1
        expect(lab.cell(2)).to_have_class(re.compile("fsdl-stacked"))
        lab.picture("narrow")
        assert not page.said


def test_several_notebooks_and_words_for_those_who_see_no_colour(project, tmp_path):
    home = tmp_path / "home"
    link(home)
    with jupyterlab(project, home) as (address, token), browser_page() as page:
        lab = Marked(page, address, token).open("nbs/00_train.ipynb")
        lab.run(1, 2, 3)
        lab.says(AGREE, {})
        lab.command("docmanager:open", path="nbs/01_other.ipynb")
        expect(lab.panel).to_have_count(1)
        expect(lab.cell(2)).to_contain_text("SIZE")
        lab.idle()
        expect(lab.status).to_have_text("fsdl_dev is not loaded in this kernel")
        lab.run(1)
        lab.says("≠ cell 3 “SIZE” has not run in this kernel", {2: "not run"})
        mark = lab.cell(2).locator(".fsdl-mark")
        assert mark.get_attribute("role") == "note"
        assert mark.get_attribute("aria-label") == "fsdl: cell 3 “SIZE” has not run in this kernel: run it"
        ink, paper = mark.evaluate(
            "e => [getComputedStyle(e).color, getComputedStyle(document.body).getPropertyValue('--jp-layout-color0')]"
        )
        assert contrast(ink, paper) > 4.5, (ink, paper)
        lab.command("docmanager:open", path="nbs/00_train.ipynb")
        expect(lab.status).to_have_text(AGREE)
        lab.command("launcher:create")
        expect(lab.status).to_be_hidden()
        assert not page.said


def test_without_the_extension_nothing_is_different(project, tmp_path):
    "Where a user has disabled it, the kernel computes nothing, and no page complains."
    home = tmp_path / "home"
    off = home / "config" / "labconfig" / "page_config.json"
    off.parent.mkdir(parents=True)
    off.write_text(json.dumps({"disabledExtensions": {"fsdl_dev": True}}))
    with jupyterlab(project, home) as (address, token), browser_page() as page:
        lab = Marked(page, address, token).open("nbs/00_train.ipynb")
        lab.run(1, 2)
        lab.edit(0, "#| default_exp train\nprint('looked:', get_ipython()._fsdl_mark.told or 'never')")
        lab.run(0)
        expect(lab.cell(0)).to_contain_text("looked: never")
        expect(lab.status).to_have_count(0)
        assert not page.said


def contrast(*colours: str) -> float:
    "The contrast of two colours, as the guidelines for accessible pages have it."

    def light(text: str) -> float:
        short = re.fullmatch(r"\s*#(\w)(\w)(\w)\s*", text)
        if text.strip() == "white" or short or "#" in text:
            digits = "ffffff" if text.strip() == "white" else text.strip().lstrip("#")
            digits = "".join(2 * letter for letter in digits) if short else digits
            numbers = [int(digits[at : at + 2], 16) for at in (0, 2, 4)]
        else:
            numbers = [*map(float, re.findall(r"[\d.]+", text)[:3])]
        parts = [n / 255 / 12.92 if n <= 10 else ((n / 255 + 0.055) / 1.055) ** 2.4 for n in numbers]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    low, high = sorted(map(light, colours))
    return (high + 0.05) / (low + 0.05)
