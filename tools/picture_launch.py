"""Record the moving picture of the README: python tools/picture_launch.py [--frames FOLDER]

It is a real JupyterLab in Chromium: a value is edited, the launch is refused, the cell is run, the same launch trains,
its card moves, and the model comes back. Written to nbs/images/launch.gif; about two minutes.
"""

import argparse
import io
import os
import sys
import tempfile
import time
from pathlib import Path

import nbformat

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))
PICTURE = ROOT / "nbs" / "images" / "launch.gif"
WIDTH, HEIGHT = 860, 790
MARGIN = 34  # JupyterLab's own, left and right: cut away
MODEL = """\
#| export
import pytorch_lightning as pl
import torch
from torch.nn import functional as F

import fsdl_dev


class Digits(pl.LightningModule):
    monitor = ("val_accuracy", "max")

    def __init__(self, lr: float):
        super().__init__()
        self.save_hyperparameters()
        self.net = fsdl_dev.load_timm("test_resnet", num_classes=10, in_chans=1)

    def training_step(self, batch, index):
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.log("val_accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), self.hparams["lr"])
"""
LAUNCH = """\
%%fsdl_launch --as run
trainer = fsdl_dev.Trainer(max_epochs=4)
trainer.fit(Digits(LR), fsdl_dev.DigitsData())"""
LOAD = """\
model = run.load("best")
print(type(model).__name__, "is back in this kernel")"""
CELLS = ["#| default_exp train", "%load_ext fsdl_dev", MODEL, "#| export\nLR = 3e-4", LAUNCH, LOAD]
EDITED, LAUNCHED, LOADED = 4, 5, 6  # their places below the title
# the notebook alone: no menu, toolbar, tabs or status bar, and as much of the cells as there is room for
BARE = """
#jp-top-panel, #jp-menu-panel, #jp-bottom-panel, .jp-NotebookPanel-toolbar, .lm-TabBar, .jp-SideBar, .jp-Toolbar-micro,
#jp-main-statusbar, .jp-cell-toolbar, .jp-Notebook-footer, .jp-toast-button { display: none !important; }
.jp-NotebookPanel, .jp-Notebook, #jp-main-dock-panel, #jp-main-content-panel, #jp-main-split-panel, .jp-MainAreaWidget
{ top: 0 !important; left: 0 !important; width: 100% !important; height: 100% !important; }
.jp-Notebook { padding: 6px 10px !important; }
"""


def project(root: Path) -> None:
    """A project with the notebook of the picture."""
    from fsdl_dev.cli.init import init_project

    init_project(root)
    path = root / "nbs" / "00_train.ipynb"
    notebook = nbformat.read(path, as_version=4)
    notebook.cells = [
        nbformat.v4.new_markdown_cell("# Digits"),
        *map(nbformat.v4.new_code_cell, (source.strip() for source in CELLS)),
    ]
    nbformat.write(notebook, path)


class Film:
    """Pictures of a page, each with the time for which it is shown."""

    def __init__(self, page):
        self.page, self.frames = page, []

    def take(self, milliseconds: int) -> None:
        """One picture; where nothing has changed, the last one is shown for longer."""
        clip = {"x": MARGIN, "y": 0, "width": WIDTH - 2 * MARGIN, "height": HEIGHT}
        data = self.page.screenshot(animations="allow", clip=clip)
        if self.frames and self.frames[-1][0] == data:
            self.frames[-1][1] += milliseconds
        else:
            self.frames.append([data, milliseconds])

    def thin(self, first: int, most: int, milliseconds: int) -> None:
        """Keep some of the pictures from `first` on, each for as long: a slow machine makes no longer film."""
        later = self.frames[first:]
        kept = [later[number * len(later) // most] for number in range(most)] if len(later) > most else later
        self.frames[first:] = [[data, milliseconds] for data, _ in kept]

    def save(self, path: Path, folder: Path | None) -> None:
        """Write the GIF, and its pictures one by one where a folder is named."""
        from PIL import Image

        pictures = [Image.open(io.BytesIO(data)).convert("RGB") for data, _ in self.frames]
        palette = pictures[-1].quantize(128, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        flat = [one.quantize(palette=palette, dither=Image.Dither.NONE) for one in pictures]
        times = [milliseconds for _, milliseconds in self.frames]
        flat[0].save(
            path, save_all=True, append_images=flat[1:], duration=times, loop=0, optimize=True, disposal=1
        )
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
            for number, picture in enumerate(pictures):
                picture.save(folder / f"{number:03d}-{times[number]}ms.png")


def see(lab, index: int) -> None:
    """Scroll where the end of a cell is below the window."""
    lab.cell(index).evaluate(
        "cell => cell.getBoundingClientRect().bottom > innerHeight && cell.scrollIntoView({block: 'end'})"
    )


def record(lab, page) -> Film:
    """Walk through the scenes."""
    from playwright.sync_api import expect

    film = Film(page)
    for index in range(1, EDITED + 1):
        lab.start_cell(index)
        lab.idle()
    lab.save()
    page.add_style_tag(content=BARE)
    lab.cell(EDITED).evaluate("cell => cell.scrollIntoView({block: 'start'})")
    page.mouse.move(0, 0)
    film.take(1200)

    lab.cell(EDITED).locator(".cm-line").nth(1).click()  # the value is edited, and its cell is not run
    page.keyboard.press("End")
    for _ in "3e-4":
        page.keyboard.press("Backspace")
        film.take(120)
    for letter in "3e-3":
        page.keyboard.type(letter)
        film.take(160)
    film.take(600)

    lab.save()
    lab.start_cell(LAUNCHED)
    expect(lab.cell(LAUNCHED)).to_contain_text("Not launched")
    lab.idle()
    page.wait_for_timeout(500)
    film.take(4200)

    lab.start_cell(EDITED)  # what the refusal says
    lab.idle()
    page.wait_for_timeout(1000)  # until its mark has gone
    film.take(1500)

    lab.start_cell(LAUNCHED)
    end, first = time.monotonic() + 900, len(film.frames)
    card = lab.cell(LAUNCHED)
    while time.monotonic() < end and "succeeded" not in card.inner_text():
        page.wait_for_timeout(700)
        see(lab, LAUNCHED)
        if "Not launched" not in card.inner_text():
            film.take(350)
    expect(card).to_contain_text("succeeded")
    film.thin(first, 36, 350)
    page.wait_for_timeout(1500)
    see(lab, LAUNCHED)
    film.take(2000)

    lab.start_cell(LOADED)
    expect(lab.cell(LOADED)).to_contain_text("Digits is back in this kernel")
    lab.idle()
    see(lab, LOADED)
    film.take(4000)
    return film


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=Path, help="also write each picture into this folder")
    options = parser.parse_args()
    from lab import LabPage, browser_page, jupyterlab

    with tempfile.TemporaryDirectory() as folder:
        root, home = Path(folder, "digits"), Path(folder, "home")
        home.mkdir()
        identity = home / "gitconfig"
        identity.write_text("[user]\nname = Ada\nemail = ada@example.org\n[init]\ndefaultBranch = main\n")
        os.environ["GIT_CONFIG_GLOBAL"] = str(identity)
        project(root)
        with jupyterlab(root, home) as (address, token), browser_page(WIDTH, HEIGHT) as page:
            lab = LabPage(page, address, token).open("nbs/00_train.ipynb")
            lab.command("application:toggle-left-area")
            film = record(lab, page)
    film.save(PICTURE, options.frames)
    shown = sum(milliseconds for _, milliseconds in film.frames) / 1000
    print(f"{PICTURE.name}: {len(film.frames)} pictures, {shown:.0f} s, {PICTURE.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
