"""Walk the built documentation in a browser: python tools/walk.py [SITE] [PAGE...]

Every page is opened in Chromium, from a server on this machine. A dead link, a missing anchor, a picture that does not
load, an error of the console, a request to another machine, a formula that is none, markup that is left over or a page
that is wider than the window is a fault, and is printed with its page. The walk reads nothing from the network.
"""

import argparse
import json
import re
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
SITE_URL = "https://fsdl-dev.github.io/fsdl_dev"
SOURCE_URL = "https://github.com/fsdl-dev/fsdl_dev/blob/main/"
NO_BROWSER = "docs: not walked, since no Chromium is here (apt-get install chromium; pip install playwright)"
# what a page holds, as the browser has it
LOOK = r"""() => ({
    ids: [...document.querySelectorAll('[id]')].map(x => x.id),
    links: [...new Set([...document.querySelectorAll('a[href]')].map(x => x.href))],
    broken: [...document.images].filter(x => !(x.complete && x.naturalWidth)).map(x => x.getAttribute('src')),
    math: document.querySelectorAll('main math').length,
    raw: [...document.querySelectorAll('main p')].filter(x => /\$\$|^:::/.test(x.innerText))
        .map(x => x.innerText.slice(0, 80)),
    wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
})"""


class Quiet(SimpleHTTPRequestHandler):
    """Files of the site, without a line for each request."""

    def log_message(self, *_):
        pass


@contextmanager
def served(site: Path) -> Iterator[str]:
    """The site on a port of this machine: its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def pages_of(site: Path) -> list[str]:
    """The pages of a site, relative to it; not those of its older versions."""
    names = (path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    return sorted(name for name in names if not name.startswith("v/"))


def visit(page, address: str, name: str) -> dict:
    """Open a page; return what its links, pictures and mathematics look like from inside the browser."""
    page.goto(f"{address}/{name}", wait_until="load")
    return page.evaluate(LOOK)


def visit_all(address: str, names: list[str]) -> tuple[dict[str, dict], list[str]]:
    """Open pages one after another in a browser: what each holds, and what the browser complained about."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from lab import browser_page

    seen, wrong = {}, []
    with browser_page() as page:
        for name in names:
            heard = len(page.said)
            seen[name] = visit(page, address, name)
            wrong += [f"{name}: {text}" for text in page.said[heard:]]
        heard = len(page.said)
        page.wait_for_load_state("networkidle")  # what the last page asks for by and by
        wrong += [f"{names[-1]}: {text}" for text in page.said[heard:]]
    return seen, wrong


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


def page_faults(name: str, seen: dict[str, dict], address: str, site: Path, proc: Path) -> list[str]:
    """What is wrong with one page."""
    found = seen[name]
    wrong = broken_links(name, seen, address, site)
    wrong += [f"{name}: the picture {source} does not load" for source in found["broken"]]
    wrong += [f"{name}: markup left over: {text!r}" for text in found["raw"]]
    if found["wide"] > 0:
        wrong.append(f"{name}: {found['wide']} pixels wider than the window")
    if has_mathematics(proc, name) and not found["math"]:
        wrong.append(f"{name}: writes formulas and shows none")
    return wrong


def walk(site: Path, proc: Path, names: list[str] | None = None, browsers: int = 2) -> list[str]:
    """The faults of a built site, or of some of its pages; `proc` holds the processed notebooks it was built from."""
    wanted = names or pages_of(site)
    with served(site) as address, ProcessPoolExecutor(browsers, mp_context=get_context("spawn")) as pool:
        # pages that take long lie beside one another: each browser takes every second one
        tasks = [pool.submit(visit_all, address, wanted[number::browsers]) for number in range(browsers)]
        visited = [task.result() for task in tasks]
    seen = {name: found for some, _ in visited for name, found in some.items()}
    wrong = [text for _, complaints in visited for text in complaints]
    for name in wanted:
        wrong += page_faults(name, seen, address, site, proc)
    if names is None:
        reached = {
            link.split("#")[0]
            for name, found in seen.items()
            for link in found["links"]
            if link.split("#")[0] != f"{address}/{name}"  # a page's links to itself lead no one to it
        }
        wrong += [
            f"{name}: no other page leads to it" for name in wanted if f"{address}/{name}" not in reached
        ]
    return wrong


def has_browser() -> bool:
    """Whether the walk can be made here."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    try:
        import playwright  # noqa: F401
        from lab import CHROMIUM
    except ImportError:
        return False
    return bool(CHROMIUM)


def report_walk(site: Path, proc: Path, names: list[str] | None = None) -> int:
    """Walk and print what was found; the status is 1 where something is wrong."""
    if not has_browser():
        print(NO_BROWSER)
        return 0
    began = time.monotonic()
    wrong = walk(site, proc, names)
    for line in wrong:
        print(f"docs: {line}", file=sys.stderr)
    count = len(names or pages_of(site))
    print(f"docs: walked {count} pages in {time.monotonic() - began:.0f} s, {len(wrong) or 'no'} faults")
    if wrong:
        print("  fix: change the notebook of that page, then `make docs`", file=sys.stderr)
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("site", nargs="?", type=Path, default=ROOT / "_docs")
    parser.add_argument(
        "page", nargs="*", help="pages of the site, such as tutorials/ssh.html [default: all]"
    )
    options = parser.parse_args()
    return report_walk(options.site.resolve(), ROOT / "_proc", options.page or None)


if __name__ == "__main__":
    sys.exit(main())
