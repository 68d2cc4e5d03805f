"""The tools of the documentation, without a build: the user's reference, the sidebar, a page whose cell fails."""

import json
import re
from pathlib import Path

import pytest
from conftest import write_notebook
from repository import ROOT

pytest.importorskip("nbdev")
import docs  # noqa: E402
import llms  # noqa: E402
import reference  # noqa: E402

import fsdl_dev  # noqa: E402
from fsdl_dev.core.event_kinds import EVENT_KINDS  # noqa: E402
from fsdl_dev.core.protocol import Env  # noqa: E402
from fsdl_dev.records.facts import field_types  # noqa: E402


def test_reference_names_all_that_a_user_types(tmp_path):
    from fsdl_dev.cli.main import main
    from fsdl_dev.engines.target import kind_fields
    from fsdl_dev.notebook.magics import LINES

    reference.write_reference(tmp_path)
    page = {path.stem: path.read_text() for path in tmp_path.glob("*.qmd")}
    assert all(f"## {name}\n" in page["python"] for name in fsdl_dev.__all__ if name != "__version__")
    assert all(f"## %{name}\n" in page["magics"] for name in LINES) and "## %%fsdl_launch\n" in page["magics"]
    assert all(f"## fsdl {name}\n" in page["commands"] for name in main.list_commands(None))  # type: ignore
    for kind in ("local", "ssh", "slurm", "ray", "kubernetes", "sky"):
        part = page["settings"].partition(f'kind "{kind}"\n')[2].partition("\n## ")[0]
        assert all(f"| `{note.name}` |" in part for note in kind_fields(kind)), kind
        assert not [note.name for note in kind_fields(kind) if not note.note], kind
    for name in (Env.STORE, Env.NOTEBOOK, Env.RUN_DIR, Env.RESUME):
        assert re.search(rf"\| `{name}` \| \w", page["environment"]), name
    for kind, cls in EVENT_KINDS.items():
        part = page["events"].partition(f"\n## {kind}\n")[2].partition("\n## ")[0]
        assert all(f"| `{name}` |" in part for name in field_types(cls)), kind
    schema = json.loads((tmp_path / "events.schema.json").read_text())
    assert schema["$defs"]["queue"]["properties"]["start"]["description"]
    assert "<object" not in "".join(page.values()) and "<function" not in "".join(page.values())


def test_settings_that_the_package_reads_are_in_the_reference():
    code = "\n".join(path.read_text() for path in (ROOT / "fsdl_dev").rglob("*.py"))
    read = set(re.findall(r'(?:project\.config|\bconfig|\)\.config)\.get\("(\w+)"', code))
    assert read >= {"target", "store"} and read <= set(reference.SETTINGS), read - set(reference.SETTINGS)


def test_guides_come_first_and_internals_are_folded_behind_them():
    import yaml

    contents = yaml.safe_load(docs.sidebar_text())["website"]["sidebar"]["contents"]
    titles = [entry.get("section") for entry in contents]
    assert titles == [None, "Tutorials", "How to", "Explanation", "Reference"]
    *pages, internals = contents[-1]["contents"]
    assert pages == [f"reference/{name}.qmd" for name in reference.PAGES]
    assert internals["section"] == "Internals" and len(internals["contents"]) > 15


def test_readme_says_what_it_is_for_and_invents_no_address():
    text = (ROOT / "README.md").read_text()
    head = text.partition("## Start")[0]
    assert "**Launch a training from a notebook cell" in head and "images/launch.gif" in head
    assert head.count("**refused, cell named**") == 2 and "submitit" in head and "papermill" in head
    assert "make lab" in text and len(text.split()) <= 900
    for name in ("README.md", "CONTRIBUTING.md", ".github/ISSUE_TEMPLATE/config.yml"):
        assert "fsdl-dev/fsdl_dev" not in (ROOT / name).read_text(), name


def test_no_number_in_the_text_is_stale(capsys, monkeypatch, tmp_path):
    """A number that came from a run is an expression over it: `fsdl numbers --fix` writes what it says now."""
    stale = docs.stale_numbers()
    assert not stale, capsys.readouterr().err
    page = write_notebook(tmp_path / "nbs" / "00_page.ipynb", ["Seven is <!--= 3 + 4 -->8<!--/-->."])
    content = json.loads(page.read_text())
    content["cells"][0] |= {"cell_type": "markdown"}
    page.write_text(json.dumps(content))
    monkeypatch.setattr(docs, "NOTEBOOKS", tmp_path / "nbs")
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    assert docs.stale_numbers() and "fsdl numbers nbs/00_page.ipynb --fix" in capsys.readouterr().err


def test_signatures_have_no_links_in_their_comments():
    code = "```python\ndef f(\n    x, # as [`find`](https://a.b/c.html#find) takes it\n)\n```\n"
    text = f"{code}\nSee [`find`](https://a.b/c.html#find).\n"
    plain = code.replace("[`find`](https://a.b/c.html#find)", "`find`")
    assert docs.without_links_in_code(text) == text.replace(code, plain)


def test_tutorials_show_what_a_user_types():
    from fsdl_dev.core.cells import read_notebook

    # these explain mechanisms and take them apart: what is shipped, how a plan is computed, an engine of your own,
    # how hours of a plan are reckoned
    inside = {
        "02_what_is_shipped",
        "04_does_it_fit",
        "05_one_gpu_to_many",
        "06_cutting_the_model",
        "14_your_own_queue",
        "21_what_will_it_cost",
    }
    paths = sorted((ROOT / "nbs" / "tutorials").glob("[0-9]*.ipynb"))
    assert inside < {path.stem for path in paths}
    for path in paths:
        name = path.stem
        if name in inside:
            continue
        notebook = read_notebook(path)
        shown = "\n".join(c.source for c in notebook.cells if c.kind == "code" and "hide" not in c.directives)
        assert not re.search(r"(?<!tool\.)\bfsdl_dev\.\w+\.|from fsdl_dev\.|import fsdl_dev\.", shown), name
        assert not re.search(r"""--on test\b|on=["']test["']|#\|\s*export$""", shown, re.M), name


def test_a_bad_cell_costs_its_own_page_only(tmp_path):
    bad = write_notebook(
        tmp_path / "00_bad.ipynb",
        ["# Bad\n\n> A cell fails.", "#| export\nfrom json import nothing_of_this", "1 + 1"],
    )
    failure = docs.process_notebook(bad, tmp_path / "out" / "00_bad.ipynb")
    assert "ImportError" in failure and "nothing_of_this" in failure
    page = (tmp_path / "out" / "00_bad.ipynb").read_text()
    assert "built without executing it" in page and "1 + 1" in page and "A cell fails." in page


def test_llms_txt_names_each_guide_and_each_page_of_the_reference():
    text = llms.llms_text(docs.NOTEBOOKS, docs.guide_sections())
    assert re.match(r"# fsdl_dev\n\n> \w", text) and "fsdl help --json" in text
    pages = re.findall(r"^- \[[^]]+\]\(([^)]+)\): [`\w]", text, re.M)
    guides = [
        Path(name).with_suffix(".html").as_posix()
        for one in docs.guide_sections()
        for name in one["contents"]
    ]
    assert pages == [*guides, *(f"reference/{name}.html" for name in reference.PAGES)]
