"""llms.txt of the documentation site: what an agent reads first, a line for each page that a user needs.

The form is that of llmstxt.org: a title, a summary, and sections of links with what stands behind each.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from reference import PAGES

ABOUT = """# fsdl_dev

> {summary}

From a shell: `fsdl help --json` describes every command with its options and examples, `fsdl help launch --json` one.
An agent sets `FSDL_AGENT` to its name, or is served by `fsdl mcp`; its launches name a limit (`--max-cost 1`), and a
refusal names the next command. `fsdl show RUN --json` is a run as data."""


def title_and_summary(notebook: Path) -> tuple[str, str]:
    """What the first cell of a notebook says."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    text = "".join(cells[0]["source"]) if cells else ""
    title = re.search(r"^# (.+)$", text, re.M)
    summary = re.search(r"^> (.+)$", text, re.M)
    return (title[1] if title else notebook.stem), (summary[1] if summary else "")


def llms_text(notebooks: Path, sections: Iterable[Mapping]) -> str:
    """The text of llms.txt, from the folder of notebooks and the sections of guides that the sidebar has."""
    parts = [ABOUT.format(summary=title_and_summary(notebooks / "index.ipynb")[1])]
    for section in sections:
        lines = [f"## {section['section']}", ""]
        for name in section["contents"]:
            title, summary = title_and_summary(notebooks / name)
            page = Path(name).with_suffix(".html").as_posix()
            lines.append(f"- [{title}]({page})" + (f": {summary}" if summary else ""))
        parts.append("\n".join(lines))
    lines = [f"- [{title}](reference/{name}.html): {about}" for name, (title, about, _) in PAGES.items()]
    return "\n\n".join([*parts, "\n".join(["## Reference", "", *lines])]) + "\n"
