"""What a person looks at in a real JupyterLab beside the card of one run: a failure that leads to its cell, tables and
curves of several runs, a plan; all of it in the light and the dark theme, in a narrow window, and without a kernel.

PICTURES=folder keeps each page as a picture.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from conftest import PYPROJECT, SETTINGS, commit_all, write_notebook
from lab import LabPage, browser_page, jupyterlab
from playwright.sync_api import expect

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("chromium")]
PICTURES = os.environ.get("PICTURES")
TRAIN = """#| export
import time

import numpy as np

import fsdl_dev


def step(part, y, weights, decay):
    if len(weights) > 64:
        raise ValueError(f"width {len(weights)} is more than the 64 columns of the data")
    return weights - 0.003 * (part.T @ (part @ weights - y) + decay * weights)


def train(width: int = 8, decay: float = 0.1):
    "Fit a ridge regression to made-up data."
    draw = np.random.default_rng(0)
    x, noise = draw.normal(size=(200, 64)), draw.normal(size=200)
    y, weights = x[:, :8].sum(1) + noise, np.zeros(width)
    for number in range(1, 41):
        weights = step(x[:100, :width], y[:100], weights, decay)
        error = x[100:, :width] @ weights - y[100:]
        fsdl_dev.log(number, total=40, val_error=float((error**2).mean()))
        time.sleep(0.05)
"""
NET = """import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1024, width), nn.ReLU(), nn.Linear(width, 10))

    def forward(self, x):
        return self.layers(x)


batch = torch.randn(32, 1024)"""
CELLS = {
    "module": "#| default_exp study",
    "extension": "%load_ext fsdl_dev",
    "train": TRAIN,
    "run": "%%fsdl_launch --no-test --wait\ntrain(width=8)",
    "failure": "%%fsdl_launch --no-test --wait\ntrain(width=128)",
    "sweep": "%%fsdl_launch --no-test --each width=2,4,8 --wait\ntrain(width)",
    "runs": "%fsdl_runs",
    "compare": "import fsdl_dev\n\nfirst, *others = fsdl_dev.runs(state='succeeded')\n"
    "%fsdl_compare {first.words} {others[0].words} {others[1].words}",
    "diff": "%fsdl_diff {first.words} {others[0].words}",
    "net": NET,
    "memory": "%fsdl_plan Net batch --gpus 8 --gpu a100-80gb",
    "offers": f"%fsdl_plan --like {{first.words}} --gpus cpu:{os.cpu_count()} --steps 20000000 --max-cost 1",
    "refused": "%%fsdl_launch --no-test\nprint(not_there)",
}
PLACE = {name: index for index, name in enumerate(CELLS)}
LOOKED_AT = [name for name in CELLS if name not in ("module", "extension", "train", "net")]


class Pages(LabPage):
    "The notebook, whose cells have names."

    def named(self, name: str):
        return self.cell(PLACE[name])

    def output(self, name: str):
        return self.named(name).locator(".jp-Cell-outputArea")

    def picture(self, name: str) -> None:
        if PICTURES:
            self.named(name.split("-")[0]).screenshot(path=Path(PICTURES, f"{name}.png"))


@pytest.fixture(scope="module")
def studied(chromium, tmp_path_factory) -> Iterator[tuple[Path, Path]]:
    "A project whose notebook was run from its first cell to its last in a JupyterLab, and the home of that."
    root, home = tmp_path_factory.mktemp("studied") / "smallproj", tmp_path_factory.mktemp("home")
    (root / "smallproj").mkdir(parents=True)
    (root / "smallproj" / "__init__.py").write_text('__version__ = "0.0.1"\n')
    prices = '\n[tool.fsdl_dev.prices]\ncurrency = "USD"\nlocal = 0.40\n'
    (root / "pyproject.toml").write_text(PYPROJECT.format(name="smallproj") + prices)
    (root / "settings.ini").write_text(SETTINGS.format(name="smallproj"))
    (root / ".gitignore").write_text("__pycache__/\n.ipynb_checkpoints/\n.fsdl/\n")
    write_notebook(root / "nbs" / "00_study.ipynb", list(CELLS.values()))
    commit_all(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FSDL_STATE", str(tmp_path_factory.mktemp("state")))
        patch.delenv("FSDL_STORE", raising=False)
        with jupyterlab(root, home) as (address, token), browser_page(1400, 1100) as page:
            lab = Pages(page, address, token).open("nbs/00_study.ipynb")
            for name in CELLS:
                lab.start_cell(PLACE[name])
                expect(lab.named(name).locator(".jp-InputPrompt")).to_have_text(re.compile(r"\[\d+\]:"))
                lab.idle()
                lab.picture(name)
            lab.no_broken_widgets()
            lab.save()
            page.wait_for_function("() => !window.jupyterapp.shell.currentWidget.context.model.dirty")
            assert not page.said, page.said
        yield root, home


@pytest.fixture(scope="module")
def reader(studied) -> Iterator[Pages]:
    "The saved notebook in another browser, without a kernel; at the end nothing was complained about."
    with jupyterlab(*studied) as (address, token):
        with browser_page(1400, 1100) as page:
            yield Pages(page, address, token).open("nbs/00_study.ipynb", workspace="reader", kernel=False)
            assert not page.said, page.said


@pytest.fixture(scope="module", params=["JupyterLab Light", "JupyterLab Dark"])
def theme(request, reader) -> Iterator[str]:
    "One after the other: JupyterLab fails where a theme is changed before the last one is loaded."

    def wear(name: str) -> None:
        light = str("Light" in name).lower()
        reader.command("apputils:change-theme", theme=name)
        reader.page.wait_for_function(
            "light => document.body.dataset.jpThemeLight === light", arg=light, polling=100
        )

    wear(request.param)
    yield request.param
    wear("JupyterLab Light")


def texts(path: Path) -> dict[str, str]:
    "What each named cell shows in the file, as plain text."
    cells = json.loads(path.read_text())["cells"]

    def said(output: dict) -> str:
        plain = output.get("data", {}).get("text/plain", "")
        return "".join([*output.get("text", ""), *plain, *output.get("traceback", [])])

    return {name: "\n".join(map(said, cells[at]["outputs"])) for name, at in PLACE.items()}


def test_what_each_cell_says(studied):
    "The stored text of each output, which is all that a diff or an agent reads."
    said = texts(studied[0] / "nbs" / "00_study.ipynb")
    assert "succeeded" in said["run"] and "val_error" in said["run"]
    assert "cell 3" in said["failure"] and "width 128 is more than the 64 columns" in said["failure"]
    assert said["sweep"].count("succeeded") >= 3 and said["runs"].count("succeeded") >= 4
    assert "width" in said["compare"] and "val_error" in said["compare"] and "differ" in said["diff"]
    assert "GB" in said["memory"] and "USD" in said["offers"]
    assert "not_there" in said["refused"] and "Not launched" in said["refused"]


def test_an_error_leads_to_its_cell(reader):
    "A click on the place that a failed card names brings that cell into the window."
    link = reader.output("failure").get_by_role("link", name=re.compile("cell 3 “step”, line"))
    link.scroll_into_view_if_needed()
    expect(reader.named("extension")).not_to_be_in_viewport()
    link.click()
    expect(reader.named("train").get_by_text("raise ValueError")).to_be_in_viewport()


def test_tables_and_curves_of_several(reader):
    "The sweep and the comparison draw a curve for each run; the plans are tables."
    for name, curves in (("sweep", 3), ("compare", 3)):
        panel = reader.output(name).locator(".fsdl-panel").first
        expect(panel.locator("img:visible")).to_have_count(1)
        assert panel.locator(":scope > span").count() == curves
    expect(reader.output("sweep")).to_contain_text("★ best")
    expect(reader.output("offers").locator("table").first).to_contain_text("an hour, USD")
    expect(reader.output("memory").locator("table").first).to_contain_text("GB")
    reader.output("run").locator(".fsdl-plot b").nth(20).hover()
    reader.picture("run-hover")


@pytest.mark.parametrize("name", LOOKED_AT)
def test_labels_and_contrast(reader, theme, name):
    "What axe-core finds wrong with an output: controls without a name, text without contrast, pictures without words."
    reader.named(name).scroll_into_view_if_needed()
    folds = reader.output(name).locator("details")
    were = folds.evaluate_all("all => all.map(one => [one.open, (one.open = true)][0])")
    reader.picture(f"{name}-{theme.split()[-1].lower()}")
    reader.named(name).evaluate("cell => cell.querySelector('.jp-Cell-outputArea').id = 'looked-at'")
    try:
        found = Axe().run(reader.page, context={"include": ["#looked-at"]})
    finally:
        reader.page.evaluate("document.getElementById('looked-at').removeAttribute('id')")
        folds.evaluate_all("(all, were) => all.forEach((one, at) => { one.open = were[at] })", were)
    wrong = [
        (rule["id"], node["html"][:200], node.get("failureSummary", "")[:300])
        for rule in found.response["violations"]
        for node in rule["nodes"]
    ]
    assert not wrong, wrong


@pytest.mark.parametrize("width", [420, 700])
def test_a_narrow_window(reader, width):
    "Half a screen and a phone: no output is wider than its place, but for tables and code, which scroll by themselves."
    reader.page.set_viewport_size({"width": width, "height": 900})
    reader.command("application:toggle-left-area")
    try:
        reader.page.wait_for_function("() => document.querySelector('.jp-NotebookPanel').clientWidth > 300")
        for name in LOOKED_AT:
            reader.named(name).scroll_into_view_if_needed()
            reader.picture(f"{name}-{width}")
            over = reader.output(name).evaluate("""area => {
              const seen = area.getBoundingClientRect().right + 1
              const scrolls = e => { for (; e !== area; e = e.parentElement)
                if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(e).overflowX)) return true }
              return [...area.querySelectorAll('*')].filter(e => e.checkVisibility() && !scrolls(e)
                && e.getBoundingClientRect().right > seen).map(e => e.outerHTML.slice(0, 160)) }""")
            assert not over, (name, over[:5])
    finally:
        reader.page.set_viewport_size({"width": 1400, "height": 1100})
        reader.command("application:toggle-left-area")


def test_without_a_kernel(reader):
    "Nothing waits for a kernel: no dead button, no widget that cannot be shown."
    reader.no_broken_widgets()
    expect(reader.panel.locator(".jp-OutputArea button:visible")).to_have_count(0)
    expect(reader.output("run")).to_contain_text("succeeded")
    expect(reader.output("failure")).to_contain_text("failed")
