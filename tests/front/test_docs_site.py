"""Build the documentation site as far as it can be built without Quarto, and walk it in a browser."""

import json
import os
import re
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest
from repository import ROOT, report

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
]  # the build runs every notebook's imports, beside other tests
SITE_URL = "https://fsdl-dev.github.io/fsdl_dev"
SOURCE_URL = "https://github.com/fsdl-dev/fsdl_dev/blob/main/"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def site(working_copy) -> Path:
    """The site, built from a copy of the working tree."""
    result = subprocess.run(
        [sys.executable, "tools/docs.py", "--substitute"],
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
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join(10)


def pages_of(site: Path) -> list[str]:
    return sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))


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


def visit(browser_page, address: str, name: str) -> dict:
    """Open a page; return what its links, pictures and mathematics look like from inside the browser."""
    browser_page.goto(f"{address}/{name}", wait_until="load")
    return browser_page.evaluate("""() => ({
            ids: [...document.querySelectorAll('[id]')].map(x => x.id),
            links: [...document.querySelectorAll('a[href]')].map(x => x.href),
            broken: [...document.images].filter(x => !(x.complete && x.naturalWidth)).map(x => x.getAttribute('src')),
            math: document.querySelectorAll('main math').length,
            raw: [...document.querySelectorAll('main p')].filter(x => /\\$\\$|^:::/.test(x.innerText))
                .map(x => x.innerText.slice(0, 80)),
            wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
        })""")


def broken_links(name: str, seen: dict[str, dict], address: str, site: Path) -> list[str]:
    """The links of a page that lead nowhere: pages, files, anchors, and source files named by their address."""
    wrong = []
    for link in seen[name]["links"]:
        if link.startswith(SOURCE_URL):
            if not (ROOT / unquote(link[len(SOURCE_URL) :].split("#")[0])).exists():
                wrong.append(f"{name}: {link}, there is no such file")
            continue
        if link.startswith(SITE_URL):
            link = address + (link[len(SITE_URL) :] or "/index.html")
        if not link.startswith(address):
            continue
        path, _, anchor = link[len(address) + 1 :].partition("#")
        path = unquote(path) or "index.html"
        if not (site / path).exists():
            wrong.append(f"{name}: {path}, there is no such page")
        elif anchor and path in seen and unquote(anchor) not in seen[path]["ids"]:
            wrong.append(f"{name}: {path}#{anchor}, there is no such place on the page")
    return wrong


def has_mathematics(proc: Path, name: str) -> bool:
    """Whether the page's source writes a formula between dollars, outside code."""
    for path in proc.joinpath(name).parent.glob("*.ipynb"):
        if re.sub(r"^\d+_", "", path.stem) == Path(name).stem:
            cells = json.loads(path.read_text())["cells"]
            prose = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
            prose = re.sub(r"(?s)```.*?```|`[^`\n]*`", "", prose)
            return bool(
                re.search(r"\$\$.+?\$\$|(?<![\\\w$])\$[^\s$](?:[^$\n]*[^\s$\\])?\$(?!\w)", prose, re.S)
            )
    return False


def test_walk(site, address, working_copy, browser_page):
    seen = {name: visit(browser_page, address, name) for name in pages_of(site)}
    wrong = list(browser_page.said)
    for name, found in seen.items():
        wrong += broken_links(name, seen, address, site)
        wrong += [f"{name}: the picture {source} does not load" for source in found["broken"]]
        wrong += [f"{name}: markup left over: {text!r}" for text in found["raw"]]
        if found["wide"] > 0:
            wrong.append(f"{name}: {found['wide']} pixels wider than the window")
        if has_mathematics(working_copy / "_proc", name) and not found["math"]:
            wrong.append(f"{name}: writes formulas and shows none")
    reached = {link.split("#")[0] for found in seen.values() for link in found["links"]}
    wrong += [f"{name}: no page leads to it" for name in seen if f"{address}/{name}" not in reached]
    assert not wrong, report(
        wrong, "every link, anchor, picture and formula of the site works", "fix the notebook of that page"
    )


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
