"""Take the pictures of the README: python tools/picture_card.py [card] [refusal]

nbs/images/card.png is the card that the saved quickstart ended with, nbs/images/refusal.png what JupyterLab shows when
a cell was edited and not run again.
"""

import json
import sys
import tempfile
from pathlib import Path

import nbformat

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))
IMAGES = ROOT / "nbs" / "images"


def card() -> str:
    """The quickstart's card as its notebook holds it."""
    cells = json.loads((ROOT / "nbs" / "tutorials" / "00_quickstart.ipynb").read_text())["cells"]
    outputs = (output for cell in cells for output in cell.get("outputs", []))
    pages = ("".join(output.get("data", {}).get("text/html", "")) for output in outputs)
    return next(page for page in pages if "succeeded" in page)


def study(root: Path) -> None:
    """A project with the notebook of the README's second state."""
    from fsdl_dev.cli.init import init_project

    init_project(root)
    path = root / "nbs" / "00_train.ipynb"
    notebook = nbformat.read(path, as_version=4)
    cells = ["#| default_exp train", "%load_ext fsdl_dev", "#| export\nLR = 1e-3"]
    cells += [
        "#| export\ndef train():\n    return LR",
        "%%fsdl_launch --as run\nprint('trained with', train())",
    ]
    notebook.cells = [nbformat.v4.new_markdown_cell("# Study")] + [
        nbformat.v4.new_code_cell(source) for source in cells
    ]
    nbformat.write(notebook, path)


def picture_refusal() -> None:
    """Run the cells in JupyterLab, edit one, launch, and take what the page shows."""
    from lab import LabPage, browser_page, jupyterlab
    from playwright.sync_api import expect

    with tempfile.TemporaryDirectory() as folder:
        root, home = Path(folder, "study"), Path(folder, "home")
        home.mkdir()
        study(root)
        with jupyterlab(root, home) as (address, token), browser_page(900, 900, scale=1.5) as page:
            lab = LabPage(page, address, token).open("nbs/00_train.ipynb")
            lab.command("application:toggle-left-area")
            for index in (1, 2, 3, 4):
                lab.start_cell(index)
                lab.idle()
            page.evaluate(
                "() => window.jupyterapp.shell.currentWidget.content.widgets[3].model.sharedModel"
                ".setSource('#| export\\nLR = 1e-4  # ran as 1e-3, edited, not run again')"
            )
            lab.save()
            lab.start_cell(5)
            expect(lab.cell(5)).to_contain_text("Not launched")
            lab.idle()
            page.mouse.move(0, 0)
            top, below = lab.cell(3).bounding_box(), lab.cell(5).bounding_box()
            assert top and below
            clip = {"x": top["x"], "y": top["y"], "width": top["width"]}
            page.screenshot(
                path=str(IMAGES / "refusal.png"),
                clip={**clip, "height": below["y"] + below["height"] - top["y"]},
            )


def picture_card() -> None:
    """Take the picture of the quickstart's card."""
    from lab import browser_page

    with browser_page(760, 700, scale=1.5) as page:
        page.set_content(
            "<!doctype html><body style='margin:0;background:#fff'><div id='card'"
            f" style='display:inline-block;padding:8px;width:690px'>{card()}</div>"
        )
        page.locator("#card").screenshot(path=str(IMAGES / "card.png"))


def main() -> None:
    for name in sys.argv[1:] or ("card", "refusal"):
        {"card": picture_card, "refusal": picture_refusal}[name]()
        print(f"{name}.png: {(IMAGES / f'{name}.png').stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
