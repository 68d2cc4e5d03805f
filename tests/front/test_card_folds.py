"""The folds, switches, tab title and notification of a card in a real JupyterLab, live, saved and untrusted; and the
page of `fsdl share` from a disk.
"""

import json
from pathlib import Path

import pytest
from lab import LabPage, browser_page, jupyterlab
from playwright.sync_api import expect
from test_card_browser import feed, write_notebook

from fsdl_dev.cards.share_page import share_run
from fsdl_dev.records.run import open_run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("chromium")]
# the browser's own notification, and a note of each
HEARD = """window.heard = [];
const Own = window.Notification;
window.Notification = class extends Own {
  constructor(title, options) { super(title, options); window.heard.push([title, options.body]); }
}"""
VISIBLE = """() => [...document.querySelectorAll('.jp-OutputArea img')]
  .filter(i => i.checkVisibility()).map(i => i.className)"""
LOG = "step 40: a word of the job"


def project(tmp_path: Path, *options: str) -> tuple:
    root, home = tmp_path / "project", tmp_path / "home"
    root.mkdir()
    home.mkdir()
    process, name = feed(root / ".fsdl", *options)
    with open(open_run(root / ".fsdl", name).dir.log(0), "a") as log:
        log.write(f"GPU available: False, used: False\n{LOG}\n")
    write_notebook(
        root / "study.ipynb",
        "import fsdl_dev.cards.live\nfrom fsdl_dev.records.run import open_run\n"
        f"run = open_run('.fsdl', {name!r})",
        "run",
    )
    return root, home, process, name


def test_what_a_reader_chose_stays(tmp_path):
    """A fold that was opened and a switch that was turned stay while the card goes on; the tab says where the run is,
    and a notification that it has ended; the stored card has the same folds and switches without a kernel.
    """
    root, home, process, name = project(tmp_path, "--steps", "100000", "--until", str(tmp_path / "enough"))
    try:
        with jupyterlab(root, home) as (address, token), browser_page() as page:
            page.context.grant_permissions(["notifications"], origin=address)
            page.add_init_script(HEARD)
            lab = LabPage(page, address, token).open("study.ipynb")
            lab.start_cell(0)
            lab.start_cell(1)
            strip = lab.cell(1).locator(".fsdl-strip")
            strip.locator("img:visible").first.wait_for()
            assert strip.locator("select").count() == 2
            for label in ("smoothing", "vertical axis"):
                expect(strip.get_by_label(label)).to_be_visible()
            for fold in ("System", "Code", "Files"):
                strip.get_by_text(fold, exact=True).first.click()
            strip.get_by_label("smoothing").select_option("strong")
            strip.get_by_label("vertical axis").select_option("logarithmic")
            expect(strip.get_by_text("CPU, % of one core")).to_be_visible()
            page.wait_for_function(f"() => ({VISIBLE})().includes('strong')")
            drawn = strip.locator("img.strong").first.get_attribute("src")
            page.wait_for_function(
                "was => document.querySelector('.fsdl-strip img.strong')?.src !== was", arg=drawn
            )
            expect(strip.get_by_text("CPU, % of one core")).to_be_visible()
            expect(strip.get_by_text("log axis").first).to_be_visible()
            assert strip.get_by_label("smoothing").input_value() == "strong"
            assert set(page.evaluate(VISIBLE)) == {"strong", "some"}  # the machine's curves have no switches

            assert page.title().startswith("● ")
            strip.get_by_label("tell me when it ends").check()
            (tmp_path / "enough").touch()
            expect(lab.cell(1)).to_contain_text("succeeded")
            page.wait_for_function("() => window.heard.length === 1")
            words = open_run(root / ".fsdl", name).words
            assert page.evaluate("window.heard")[0][0] == f"{words} succeeded"
            assert page.title().startswith("✔ ")
            expect(strip).to_have_count(0)  # the stored card has replaced it
            lab.save()
            assert not page.said, page.said
        stored = "".join(
            json.loads((root / "study.ipynb").read_text())["cells"][1]["outputs"][0]["data"]["text/html"]
        )
        assert "<script" not in stored

        with jupyterlab(root, home) as (address, token), browser_page() as page:
            lab = LabPage(page, address, token).open("study.ipynb", workspace="reader", kernel=False)
            card = lab.cell(1)
            expect(card).to_contain_text("succeeded")
            card.get_by_text("Log", exact=True).click()
            expect(card.get_by_text(LOG)).to_be_visible()
            assert "GPU available" not in card.inner_text()
            card.get_by_label("smoothing").select_option("none")
            assert set(page.evaluate(VISIBLE)) & {"none", "some", "strong"} <= {"none", "some"}
            card.get_by_label("vertical axis").select_option("logarithmic")
            expect(card.get_by_text("log axis").first).to_be_visible()
            assert not page.title().startswith("✔")
            assert not page.said, page.said
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_untrusted_notebook(tmp_path):
    """Where styles and scripts are stripped, the folds open, one picture of each panel is seen and no switch."""
    root, home, process, name = project(tmp_path, "--steps", "200", "--pause", "0.001")
    process.wait()
    process.stdout.close()
    (tmp_path / "other").mkdir()
    with jupyterlab(root, home) as (address, token), browser_page() as page:
        lab = LabPage(page, address, token).open("study.ipynb")
        lab.start_cell(0)
        lab.start_cell(1)
        expect(lab.cell(1)).to_contain_text("succeeded")
        lab.save()
    with jupyterlab(root, tmp_path / "other") as (address, token), browser_page() as page:
        lab = LabPage(page, address, token).open("study.ipynb", workspace="reader", kernel=False)
        card = lab.cell(1)
        expect(card).to_contain_text("succeeded")
        assert card.locator("style").count() == 0
        assert page.evaluate(VISIBLE) == ["some", "some"] and not card.locator("select:visible").count()
        card.get_by_text("Files", exact=True).click()
        expect(card.get_by_text("run directory")).to_be_visible()
        assert not page.said, page.said


def test_shared_page_opens_from_a_disk(tmp_path):
    """The page of `fsdl share` needs no server, asks for nothing, and its folds and switches work."""
    process, first = feed(tmp_path / ".fsdl", "--steps", "50", "--pause", "0.001")
    process.wait()
    process.stdout.close()
    process, second = feed(tmp_path / ".fsdl", "--steps", "200", "--pause", "0.001")
    process.wait()
    process.stdout.close()
    made = share_run(
        open_run(tmp_path / ".fsdl", second), tmp_path, against=open_run(tmp_path / ".fsdl", first)
    )
    with browser_page() as page:
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(made.path.as_uri())
        expect(page.get_by_text("What differs")).to_be_visible()
        for fold in ("System", "Code", "Files"):
            page.get_by_text(fold, exact=True).click()
        expect(page.get_by_text("CPU, % of one core")).to_be_visible()
        page.get_by_label("smoothing").select_option("strong")
        expect(page.locator("img.strong:visible").first).to_be_visible()
        assert [url for url in asked if not url.startswith("data:")] == [made.path.as_uri()]
        assert not page.said, page.said
        page.set_viewport_size({"width": 400, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
