"""Take the pictures of the README from the saved guides: python tools/picture_card.py

nbs/images/card.png is the card that the quickstart ended with, nbs/images/refusal.png a refusal of the page on what is
shipped, beneath the cells that it speaks of.
"""

import html
import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
TUTORIALS, IMAGES = ROOT / "nbs" / "tutorials", ROOT / "nbs" / "images"
BOX = "font:13px/1.5 'DejaVu Sans Mono',monospace;white-space:pre-wrap;margin:0 0 10px;padding:8px 12px"
EDITED = '#| export\nLR = 1e-4   <span style="color:#59636e"># ran as 1e-3, edited, not run again</span>'
LAUNCH = "%%fsdl_launch --as run\nprint('trained with', train())"


def outputs(name: str):
    for cell in json.loads((TUTORIALS / name).read_text())["cells"]:
        yield from cell.get("outputs", [])


def card() -> str:
    """The quickstart's card as its notebook holds it."""
    pages = (
        "".join(output.get("data", {}).get("text/html", "")) for output in outputs("00_quickstart.ipynb")
    )
    return next(page for page in pages if "succeeded" in page)


def refusal() -> str:
    """The first refusal that the page on what is shipped holds, with the edited cell and the launch cell."""
    said = next(
        text
        for output in outputs("02_what_is_shipped.ipynb")
        if "Not launched" in (text := "".join(output.get("text", "")))
    )
    said = "\n".join(line[4:] for line in said.partition("Not launched")[2].split("\n\n")[0].splitlines()[1:])
    cell = f"{BOX};background:#f5f7f9;border:1px solid #dfe3e8;border-radius:4px"
    answer = f"{BOX};background:#fdecea;border-left:3px solid #d1242f"
    return (
        f'<div style="{cell}">{EDITED}</div><div style="{cell}">{html.escape(LAUNCH)}</div>'
        f'<div style="{answer}">Not launched: 1 check failed.\n{html.escape(said)}</div>'
    )


def main() -> None:
    from lab import browser_page

    with browser_page(760, 700, scale=1.5) as page:
        for name, shown in (("card", card()), ("refusal", refusal())):
            page.set_content(
                "<!doctype html><body style='margin:0;background:#fff'><div id='card'"
                f" style='display:inline-block;padding:8px;width:690px'>{shown}</div>"
            )
            page.locator("#card").screenshot(path=str(IMAGES / f"{name}.png"))
            print(f"{name}.png: {(IMAGES / f'{name}.png').stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
