"""The first launch of a notebook of one's own: one refusal, and one click or `--fix`; nothing that is on the page is
lost.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import write_notebook
from kernel import Kernel
from lab import LabPage, browser_page, jupyterlab
from playwright.sync_api import expect

from fsdl_dev.api import load_run
from fsdl_dev.core.rundir import list_run_ids
from fsdl_dev.core.settings import find_project

# eleven cells as a person writes them, and a launch cell: nothing is exported, and no module is named
OWN = [
    "%load_ext fsdl_dev",
    "import math",
    "import random\nfrom dataclasses import dataclass",
    "WIDTH = 8",
    "@dataclass\nclass Config:\n    width: int = WIDTH\n    lr: float = 0.1",
    "def make_data(count):\n    return [random.random() for _ in range(count)]",
    "def scaled(x, config):\n    return x * math.sqrt(config.width)",
    "class Model:\n    def __init__(self, config):\n        self.config = config\n\n    def __call__(self, x):\n"
    "        return scaled(x, self.config)",
    "def train(model, steps=3):\n    return [model(x) for x in make_data(steps)]",
    "train(Model(Config()), 2)  # a look",
    "notes = 'nothing that a job needs'",
    "%%fsdl_launch --on test --no-test --as run --wait\nprint('trained', len(train(Model(Config(lr=0.5)), steps=4)))",
]
EXPORTED = {2, 3, 4, 5, 6, 7, 8, 9}


@pytest.fixture
def own(make_project):
    "The notebook in a project, and its path."

    def make(cells=OWN, name: str = "01_charlm.ipynb", **options) -> Path:
        root = make_project(notebooks={name: cells}, export=False, git=False, **options)
        return root / "nbs" / name

    return make


def sources(path: Path) -> list[str]:
    return ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]]


def exported(path: Path) -> set[int]:
    return {number for number, text in enumerate(sources(path), 1) if "#| export\n" in text}


def fsdl(*words: str, folder: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "fsdl_dev", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


# --- in a terminal ------------------------------------------------------------------------------------------------


def test_terminal_refuses_once_and_fixes(own):
    path = own()
    root, before = path.parent.parent, json.loads(path.read_text())
    refused = fsdl("launch", "nbs/01_charlm.ipynb", "--cell", "12", folder=root)
    said = refused.stdout + refused.stderr
    assert refused.returncode == 3 and said.count("✗") == 1, said
    assert "or launch with --fix" in said and "#| default_exp charlm" in said, said
    assert json.loads(path.read_text()) == before

    checks = json.loads(fsdl("check", "nbs/01_charlm.ipynb", "--cell", "12", "--json", folder=root).stdout)
    (failed,) = [check for check in checks if check["verdict"] == "fail"]
    assert {cell["number"] for cell in failed["remedy"]["cells"]} == EXPORTED

    fixed = fsdl("launch", "nbs/01_charlm.ipynb", "--cell", "12", "--fix", folder=root)
    said = fixed.stdout + fixed.stderr
    assert fixed.returncode == 0 and "trained 4" in said, said
    assert "+ #| default_exp charlm" in said and "Reload Notebook from Disk" in said
    assert exported(path) == EXPORTED and sources(path)[1].startswith(
        "#| default_exp charlm\n#| export\nimport"
    )
    after = json.loads(path.read_text())
    for cell in (*before["cells"], *after["cells"]):
        cell["source"] = ""
    assert after == before  # ids, outputs and metadata are what they were


def test_terminal_leaves_alone_what_it_may_not_change(own, tmp_path):
    path = own()
    root = path.parent.parent
    before = path.read_bytes()
    launch = ("launch", "--cell", "12", "--fix")
    path.chmod(0o444)
    said = fsdl(*launch, "nbs/01_charlm.ipynb", folder=root).stderr
    assert "01_charlm.ipynb is read-only" in said and "chmod u+w" in said, said
    path.chmod(0o644)
    other = tmp_path / "other"
    other.mkdir()
    (other / "pyproject.toml").write_text('[project]\nname = "other"\n')
    said = fsdl(*launch, str(path), folder=other).stderr
    assert f"belongs to another project, {root}" in said and f"cd {root}" in said, said
    assert path.read_bytes() == before and not list_run_ids(find_project(root).store)


def test_cells_that_export_elsewhere_are_not_exported_again(own):
    cells = ["#| default_exp study", "#| export layers\nclass Model: ...", "%%fsdl_launch --on test\nModel()"]
    path = own(cells, "02_study.ipynb")
    write_notebook(path.parent / "00_layers.ipynb", ["#| default_exp layers", "#| export\nDEPTH = 3"])
    before = path.read_bytes()
    done = fsdl(
        "launch", "nbs/02_study.ipynb", "--cell", "3", "--fix", "--no-test", folder=path.parent.parent
    )
    said = done.stdout + done.stderr
    assert done.returncode == 3 and "exported to another module, layers" in said, said
    assert "from smallproj.layers import Model" in said and path.read_bytes() == before


def test_a_module_of_another_notebook_is_not_taken(own):
    path = own()
    write_notebook(path.parent / "00_charlm.ipynb", ["#| default_exp charlm", "#| export\nDEPTH = 3"])
    root = path.parent.parent
    assert "✓ import" in fsdl("check", "smallproj.charlm:DEPTH", folder=root).stdout  # it exports
    done = fsdl("launch", "nbs/01_charlm.ipynb", "--cell", "12", "--fix", folder=root)
    assert done.returncode == 0 and "#| default_exp charlm_2" in sources(path)[1], done.stderr


# --- in a kernel, without a browser ------------------------------------------------------------------------------


class StandIn(Kernel):
    "A kernel with a page that keeps its own cells: it does what the script says, with what is typed on it."

    def __init__(self, path: Path):
        super().__init__(path.parent, env={**os.environ, "JPY_SESSION_NAME": str(path)})
        self.path, self.page, self.ran = path, json.loads(path.read_text()), []

    def type(self, number: int, text: str) -> None:
        self.page["cells"][number - 1]["source"] = text

    def save(self) -> None:
        self.path.write_text(json.dumps(self.page))

    def obey(self, plan: dict) -> None:
        cells = {"".join(cell["source"]): cell for cell in self.page["cells"]}
        if all(one["before"] in cells for one in plan["cells"]):
            for one in plan["cells"]:
                cells[one["before"]]["source"] = "\n".join([*one["lines"], one["before"]])
        self.save()

    def start(self, number: int) -> str:
        "Run a cell of the page; what it says, with the HTML that is shown."
        cell, text = self.page["cells"][number - 1], ""
        for kind, content in self.answers(self.send("".join(cell["source"]), cell["id"])):
            text += self.words(kind, content) + content.get("data", {}).get("text/html", "")
            if found := re.search(
                r"\(here, (\{.*\})\) \}</script>", content.get("data", {}).get("text/html", "")
            ):
                self.obey(json.loads(found[1]))
        return text


@pytest.fixture
def stand_in(own):
    made = []

    def make(*arguments, **options) -> StandIn:
        made.append(StandIn(own(*arguments, **options)))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def test_fix_in_a_cell(stand_in):
    page = stand_in()
    for number in range(1, 12):
        page.start(number)
    refused = page.start(12)
    assert (
        refused.count("✗ <b>") == 1 and "<button" in refused and "Not launched: 1 check failed" in refused
    ), refused
    assert "Export cells 2, 3, 4, 5, 6, 7, 8, 9 to charlm, save, and launch again" in refused
    page.type(12, OWN[11].replace("--on test", "--on test --fix"))
    page.type(11, "notes = 'typed, and not saved or run'")
    said = page.start(12)
    assert "Not launched" not in said and "+ #| export" in said and exported(page.path) == EXPORTED, said
    assert "✓ saved · ✓ 8 cells agree" in said and "tests skipped" in said and "slots free" in said, said
    assert "not saved or run" in sources(page.path)[10]
    assert "trained 4" in load_run("last", page.path.parent.parent).logs()
    again = page.start(12)
    assert "Not launched" not in again and "(last run)" in again, again


def test_fix_leaves_a_cell_that_is_being_edited(stand_in):
    page = stand_in()
    for number in range(1, 12):
        page.start(number)
    page.type(12, OWN[11].replace("--on test", "--on test --fix"))
    page.save()
    page.type(7, OWN[6] + "  # half a thought (")
    said = page.start(12)
    assert "cell 7 “scaled” is being edited" in said and "run cell 7, then launch again with --fix" in said, (
        said
    )
    assert not exported(page.path) and "half a thought" in sources(page.path)[6]
    assert not list_run_ids(find_project(page.path).store)


def test_fix_runs_what_did_not_run(stand_in):
    page = stand_in()
    for number in (1, 2, 3, 4, 6, 7, 8, 9):  # the configuration was never run
        page.start(number)
    page.type(12, OWN[11].replace("--on test", "--on test --fix"))
    said = page.start(12)
    assert "Not launched" not in said and "fsdl: running cell 5 “Config” again" in said, said


def test_fix_without_a_page(stand_in):
    page = stand_in()
    for number in range(1, 12):
        page.start(number)
    page.type(12, OWN[11].replace("--on test", "--on test --fix"))
    page.save()
    page.page["cells"][11]["id"] = "vscode-notebook-cell:" + str(page.path)
    said = page.start(12)
    assert "No page made the change" in said and "fsdl launch" in said and not exported(page.path), said
    call = "import fsdl_dev; fsdl_dev.launch('01_charlm.ipynb', cell='12', fix=True)"
    assert "open on a page" in (said := page.run(call)) and not exported(page.path), said


# --- in JupyterLab ------------------------------------------------------------------------------------------------


def dirty(page) -> bool:
    return page.evaluate("() => window.jupyterapp.shell.currentWidget.context.model.dirty")


def write_on_page(lab, index: int, text: str) -> None:
    "Type over a cell, and neither run nor save it."
    lab.cell(index).locator(".cm-content").click()
    lab.page.keyboard.press("Control+a")
    lab.page.keyboard.insert_text(text)
    lab.page.keyboard.press("Escape")


@pytest.mark.slow
@pytest.mark.usefixtures("chromium")
def test_first_launch_in_jupyterlab(own, tmp_path):
    "One refusal, one click: a launched run; what was typed and not saved is still there, and so are the outputs."
    path, home = own(), tmp_path / "home"
    home.mkdir()
    root = path.parent.parent
    with jupyterlab(root, home) as (address, token), browser_page() as page:
        lab = LabPage(page, address, token).open("nbs/01_charlm.ipynb")
        for index in range(11):
            lab.start_cell(index)
        lab.idle()
        lab.save()
        write_on_page(lab, 10, "notes = 'typed, not saved'")
        lab.start_cell(11)
        button = lab.cell(11).get_by_role("button", name=re.compile("Export cells .* and launch again"))
        expect(button).to_be_visible()
        expect(lab.cell(11).locator(".fsdl-refused p")).to_have_count(1)
        assert not exported(path)
        button.click()
        expect(lab.cell(11)).to_contain_text("succeeded")
        expect(lab.cell(11)).to_contain_text("✓ 8 cells agree")
        lab.idle()
        assert exported(path) == EXPORTED and "typed, not saved" in sources(path)[10]
        expect(lab.cell(9)).to_contain_text("[")  # an output of before
        assert lab.panel.locator(".jp-Cell").count() == 12
        # the page and the file are one: a save asks nothing
        lab.save()
        expect(page.locator(".jp-Dialog")).to_have_count(0)
        assert not dirty(page)
        assert "<script>" not in path.read_text()
        assert len(list_run_ids(find_project(root).store)) == 1
        assert not [line for line in page.said if "fsdl" in line.lower()], page.said


@pytest.mark.slow
@pytest.mark.usefixtures("chromium")
def test_fix_option_in_jupyterlab(own, tmp_path):
    "`--fix` leaves a cell alone that is being edited; once it has run, the page makes the change and the job runs."
    cells = [*OWN[:11], OWN[11].replace("--on test", "--on test --fix")]
    path, home = own(cells), tmp_path / "home"
    home.mkdir()
    root = path.parent.parent
    with jupyterlab(root, home) as (address, token), browser_page() as page:
        lab = LabPage(page, address, token).open("nbs/01_charlm.ipynb")
        for index in range(11):
            lab.start_cell(index)
        lab.idle()
        lab.save()
        write_on_page(lab, 6, OWN[6] + "  # half a thought")
        lab.start_cell(11)
        expect(lab.cell(11)).to_contain_text("is being edited")
        assert not exported(path)
        lab.idle()
        lab.start_cell(6)
        lab.idle()
        lab.start_cell(11)  # neither the run nor the change is saved by hand
        expect(lab.cell(11)).to_contain_text("succeeded")
        lab.idle()
        assert exported(path) == EXPORTED and "half a thought" in sources(path)[6]
        expect(lab.cell(11)).to_contain_text("+ #| default_exp charlm")
        lab.save()
        expect(page.locator(".jp-Dialog")).to_have_count(0)
        assert "<script>" not in path.read_text()
