"""Render nbdev's `_proc/` folder to a static site with pandoc alone, where there is no Quarto.

It stands in for Quarto on a machine without a network: sidebar and navbar from _quarto.yml, callouts, tabs,
`#|` options, references within a page, show_doc, MathML, search. Mermaid stays text.
"""

import html
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pypandoc
import yaml
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from .notebook import notebook_markdown

HERE = Path(__file__).parent
READER = "markdown+lists_without_preceding_blankline"


@dataclass(frozen=True)
class Page:
    name: str  # the source, relative to _proc
    out: str  # the page, relative to the site
    title: str
    markdown: str


def merge(base: dict, extra: dict) -> dict:
    """Merge nested dictionaries, the second winning, as Quarto does with its metadata files."""
    for key, value in extra.items():
        both = isinstance(value, dict) and isinstance(base.get(key), dict)
        base[key] = merge(base[key], value) if both else value
    return base


def read_config(proc: Path) -> dict:
    config = yaml.safe_load((proc / "_quarto.yml").read_text()) or {}
    for name in config.pop("metadata-files", []):
        if (proc / name).exists():
            merge(config, yaml.safe_load((proc / name).read_text()) or {})
    return config


def front_matter(markdown: str) -> dict:
    match = re.match(r"\s*---\n(.*?)\n---\n", markdown, re.S)
    return yaml.safe_load(match[1]) or {} if match else {}


def relative(target: str, page: str) -> str:
    return os.path.relpath(target, os.path.dirname(page) or ".")


def sidebar(items: list, pages: dict[str, Page], current: str, depth: int = 0) -> str:
    """The list items of a sidebar or navbar, the current page marked.

    A section inside a section is folded, unless it holds the current page: as Quarto's `collapse-level: 2` does.
    """
    result = []
    for item in items:
        item = {"href": item} if isinstance(item, str) else item
        href = item.get("href") or item.get("file")
        page = pages.get(href)
        text = html.escape(str(item.get("text") or item.get("section") or (page and page.title) or href))
        if page:
            mark = " aria-current=page" if page.out == current else ""
            text = f'<a href="{relative(page.out, current)}"{mark}>{text}</a>'
        else:
            text = f'<a href="{href}">{text}</a>' if href else f"<span>{text}</span>"
        below = item.get("contents")
        inner = f"<ul>{sidebar(below, pages, current, depth + 1)}</ul>" if isinstance(below, list) else ""
        if inner and depth:
            unfolded = " open" if "aria-current" in inner else ""
            result.append(f"<li><details{unfolded}><summary>{text}</summary>{inner}</details></li>")
        else:
            result.append(f"<li>{text}{inner}</li>")
    return "".join(result)


def read_page(path: Path, proc: Path, out: Path) -> Page:
    """Read a notebook or .qmd of _proc; write the images of its outputs into the site."""
    name = path.relative_to(proc).as_posix()
    count = 0

    def save_image(data: bytes, extension: str) -> str:
        nonlocal count
        count += 1
        file = out / f"{name.rsplit('.', 1)[0]}_files" / f"out-{count}.{extension}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        return os.path.relpath(file, (out / name).parent)

    text = path.read_text()
    markdown = notebook_markdown(json.loads(text), save_image) if path.suffix == ".ipynb" else text
    meta = front_matter(markdown)
    target = (
        Path(name).parent / meta["output-file"] if "output-file" in meta else Path(name).with_suffix(".html")
    )
    return Page(name, target.as_posix(), str(meta.get("title") or Path(name).stem), markdown)


def page_variables(page: Page, pages: dict[str, Page], config: dict) -> list[tuple[str, str]]:
    """What the template is filled with beside the text."""
    web, style = config.get("website", {}), (config.get("format") or {}).get("html") or {}
    side = web.get("sidebar") or {}
    items = (side[0] if isinstance(side, list) else side).get("contents") or sorted(pages)
    site, title = web.get("title", ""), page.title
    variables = [
        ("pagetitle", title if title == site else f"{title} – {site}"),
        ("sitetitle", site),
        ("sidebar", sidebar(sorted(pages) if items == "auto" else items, pages, page.out)),
        ("root", relative(".", page.out).rstrip("/") + "/"),
        ("repo", web.get("repo-url", "")),
        ("toc", "true" if style.get("toc") else ""),
    ]
    css = style.get("css") or []
    variables += [("usercss", name) for name in ([css] if isinstance(css, str) else css)]
    for side in ("left", "right"):
        entries = (web.get("navbar") or {}).get(side) or []
        variables.append(("nav" + side, sidebar(entries, pages, page.out)))
    return [(name, value) for name, value in variables if value]


def plain_text(markup: str) -> str:
    """What a reader sees of some HTML, in one line."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", markup)).split())


LEXERS = {"python": "ipython3"}  # magics are no Python
CODE = re.compile(r'<pre class="(?P<language>[\w+-]+)(?P<classes>[^"]*)"><code>(?P<code>[^<]*)</code></pre>')


def coloured(found: re.Match) -> str:
    """A block of code with its parts marked. pandoc would read its description of a language anew for each page."""
    language = found["language"]
    try:
        lexer = get_lexer_by_name(LEXERS.get(language, language))
    except ClassNotFound:  # a name of ours, such as `output`
        return found[0]
    marked = highlight(html.unescape(found["code"]), lexer, HtmlFormatter(nowrap=True)).rstrip("\n")
    block = (
        f'<pre class="sourceCode {language}{found["classes"]}"><code class="sourceCode">{marked}</code></pre>'
    )
    return f'<div class="sourceCode">{block}</div>'


def page_kind(name: str) -> str:
    """What the search puts first: guides, then the reference, then the internals."""
    folder = name.partition("/")[0]
    if folder in ("tutorials", "explanation") or "/" not in name:
        return "internals" if folder == "api.ipynb" else "guide"
    return "reference" if folder == "reference" else "internals"


def render_page(page: Page, pages: dict[str, Page], config: dict, out: Path) -> tuple[dict, str]:
    """Write one page; return its entry for the search and pandoc's warnings."""
    web, style = config.get("website", {}), (config.get("format") or {}).get("html") or {}
    target = out / page.out
    target.parent.mkdir(parents=True, exist_ok=True)
    meta = target.with_name(target.name + ".meta.json")
    links = {name: relative(other.out, page.out) for name, other in pages.items()}
    site_url = (web.get("site-url") or "").rstrip("/")
    by_url = {other.out: relative(other.out, page.out) for other in pages.values()}
    meta.write_text(
        json.dumps(
            {"links": links, "byurl": by_url, "pagedir": str(Path(page.name).parent), "siteurl": site_url}
        )
    )
    command = [
        pypandoc.get_pandoc_path(), "-f", READER, "-t", "html5", "--standalone", "--mathml", "--wrap=none",
        "--syntax-highlighting=none", "--section-divs", "--toc", "--toc-depth", str(style.get("toc-depth", 3)),
        "--template", str(HERE / "page.html"), "--lua-filter", str(HERE / "markup.lua"),
        "--metadata", f"links={meta}", "-o", str(target),
    ]  # fmt: skip
    for name, value in page_variables(page, pages, config):
        command += ["-V", f"{name}={value}"]
    result = subprocess.run(command, input=page.markdown, text=True, capture_output=True)
    meta.unlink()
    if result.returncode:
        raise RuntimeError(f"{page.name}: {result.stderr}")
    whole = CODE.sub(coloured, target.read_text(encoding="utf-8"))
    target.write_text(whole, encoding="utf-8")
    main = whole.split("<main", 1)[1].split("</main", 1)[0].split(">", 1)[1]
    text = re.sub(r"(?s)<(script|style|math).*?</\1>", "", main)
    headings = [
        [plain_text(heading), name]
        for name, heading in re.findall(r'(?s)<section id="([^"]+)"[^>]*>\s*<h[23][^>]*>(.*?)</h[23]>', main)
    ]
    entry = {
        "href": page.out,
        "title": page.title,
        "kind": page_kind(page.name),
        "headings": headings,
        "text": plain_text(text),
    }
    return entry, result.stderr


def build(proc: Path, out: Path) -> int:
    """Render the folder `proc` into a fresh folder `out`; return the number of pages."""
    proc, out = Path(proc).resolve(), Path(out).resolve()
    config = read_config(proc)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    sources = [
        path
        for path in sorted(proc.rglob("*"))
        if path.suffix in (".ipynb", ".qmd")
        and not any(part[0] in "._" for part in path.relative_to(proc).parts)
    ]
    pages = {page.name: page for page in (read_page(path, proc, out) for path in sources)}
    for name in ("style.css", "site.js"):
        shutil.copy(HERE / name, out / name)
    for path in proc.rglob("*"):  # pictures, styles and other files that the pages link to
        wanted = path.suffix in (".png", ".svg", ".jpg", ".gif", ".css")
        if wanted and not any(part[0] in "._" for part in path.relative_to(proc).parts):
            target = out / path.relative_to(proc)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    with ThreadPoolExecutor() as pool:
        rendered = list(pool.map(lambda page: render_page(page, pages, config, out), pages.values()))
    (out / "search.js").write_text("window.SEARCH=" + json.dumps([entry for entry, _ in rendered]))
    for page, (_, warnings) in zip(pages.values(), rendered):
        if warnings.strip():
            print(f"{page.name}: {warnings.strip()}", file=sys.stderr)
    return len(pages)
