"""Build the documentation site as far as it can be built without Quarto, and walk it in a browser."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from repository import report
from walk import pages_of, served, visit, walk

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
]  # the build runs every notebook's imports, beside other tests


@pytest.fixture(scope="module")
def site(working_copy) -> Path:
    """The site, built from a copy of the working tree."""
    result = subprocess.run(
        [sys.executable, "tools/docs.py", "--substitute", "--no-walk"],
        cwd=working_copy,
        env={**os.environ, "PYTHONPATH": str(working_copy)},
        text=True,
        capture_output=True,
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    assert "WARNING unresolved reference" not in result.stderr, result.stderr
    assert "was not executed" not in result.stderr, result.stderr
    return working_copy / "_docs"


@pytest.fixture(scope="module")
def address(site):
    """The site served on this machine."""
    with served(site) as at:
        yield at


def test_every_notebook_has_its_page(site, working_copy):
    notebooks = [
        p
        for p in (working_copy / "nbs").rglob("*.ipynb")
        if not any(part[0] in "._" for part in p.parts[-2:])
    ]
    reference = {"python", "magics", "commands", "settings", "environment", "events", "runs"}
    assert {f"reference/{name}.html" for name in reference} <= set(pages_of(site))
    assert len(pages_of(site)) == len(notebooks) + len(reference)
    texts = {page: (site / page).read_text() for page in pages_of(site)}
    assert all(re.search(r"<h1[^>]*>\s*\S", text) for text in texts.values())
    unread = [page for page, text in texts.items() if re.search(r">[^<]*\]\(https?://", text)]
    assert not unread, "Markdown's brackets are left where a link should be"


def test_reference_shows_what_is_typed(site):
    """Options keep their two hyphens, choices have no escapes, and examples keep their lines."""
    for name in ("commands", "magics"):
        page = (site / "reference" / f"{name}.html").read_text()
        assert not re.search(r"[–—]\w|\\\||\x08", page.partition("<main")[2])
    examples = (site / "reference/commands.html").read_text().partition('id="fsdl-launch"')[2]
    assert re.search(r"(?m)^fsdl launch -m digits\.train -- --lr 1e-3", examples)


@pytest.mark.usefixtures("chromium")
def test_walk(site, working_copy):
    wrong = walk(site, working_copy / "_proc")
    assert not wrong, report(
        wrong, "every link, anchor, picture and formula of the site works", "fix the notebook of that page"
    )


@pytest.mark.usefixtures("chromium")
def test_the_walk_names_each_fault_with_its_page(tmp_path):
    """A page with everything wrong that the walk looks for, and one that is right."""
    head = '<html><head><link rel="icon" href="data:,"></head><body>'
    (tmp_path / "index.html").write_text(f'{head}<a href="second.html#here">right</a></body>')
    (tmp_path / "second.html").write_text(
        f'{head}<main id="here">'
        '<a href="index.html">back</a><a href="gone.html">1</a><a href="index.html#nowhere">2</a>'
        '<img src="no.png"><p>$$x$$</p><div style="width:3000px">wide</div>'
        '<script>console.error("by hand"); nothing.of.this</script>'
        '<script src="https://example.org/x.js"></script></main></body>'
    )
    (tmp_path / "alone.html").write_text(f'{head}<a id="top" href="#top">only itself</a></body>')
    wrong = "\n".join(walk(tmp_path, tmp_path))
    for fault in (
        "second.html: gone.html, there is no such page",
        "second.html: index.html#nowhere, there is no such place on the page",
        "second.html: the picture no.png does not load",
        "second.html: markup left over: '$$x$$'",
        "pixels wider than the window",
        "second.html: by hand",
        "second.html: error in the page: nothing is not defined",
        "second.html: asked for https://example.org/x.js, which is not on this machine",
        "alone.html: no other page leads to it",
    ):
        assert fault in wrong, f"{fault}\n\nin\n{wrong}"
    assert "index.html: " not in wrong.replace("second.html: index.html#nowhere", ""), wrong


def test_search_and_sidebar(site, address, browser_page):
    page = browser_page
    page.goto(f"{address}/index.html")
    page.get_by_label("Search").fill("launch refused")
    page.locator("#hits a").first.wait_for()
    page.locator("#hits a").first.click()
    page.wait_for_load_state("load")
    page.locator("nav.sidebar a", has_text="Overview").click()
    page.locator("nav.sidebar [aria-current]", has_text="Overview").wait_for()
    assert not browser_page.said


def test_phone_width(site, address, browser_page):
    page = browser_page
    page.set_viewport_size({"width": 420, "height": 900})
    guides = [name for name in pages_of(site) if name.startswith(("tutorials/", "explanation/"))]
    wide = [name for name in guides if visit(browser_page, address, name)["wide"] > 0]
    assert not wide, "wider than a phone's window"
    assert visit(browser_page, address, "index.html")["wide"] <= 0
    entry = page.locator("nav.sidebar a", has_text="Quickstart")
    assert not entry.is_visible()
    page.get_by_label("Menu").click()
    entry.click()
    page.wait_for_url("**/quickstart.html")


def test_dark(address, browser_page):
    page, ground = browser_page, "getComputedStyle(document.body).backgroundColor"
    page.emulate_media(color_scheme="dark")
    visit(browser_page, address, "index.html")
    dark = page.evaluate(ground)
    page.get_by_label("Dark or light").click()
    light = page.evaluate(ground)
    assert dark != light == "rgb(255, 255, 255)"
    visit(browser_page, address, "index.html")
    assert page.evaluate(ground) == light, "the choice is kept"
