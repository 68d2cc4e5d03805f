"""The search of the site: titles before headings before text, guides before the reference before internals."""

import pytest
from docs_preview.site import build
from walk import served

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300, func_only=True)]  # not its wait for other tests
PAGES = {
    "checks/00_typos.qmd": (
        "Typos",
        "The Trainer is named here, and the Trainer again: Trainer. Digests too.",
    ),
    "train/00_trainer.qmd": ("Trainer", "Lightning's, with more."),
    "tutorials/40_module.qmd": ("I have a LightningModule", "## Which Trainer\n\nAny of them."),
    "tutorials/44_editors.qmd": ("VS Code, Colab and papermill", "Nothing of the word above."),
    "reference/commands.qmd": ("Commands", "fsdl launch takes a Trainer."),
    "explanation/01_words.qmd": ("Words", "A Trainer trains. To fine-tune is to train on."),
}


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    proc, site = tmp_path_factory.mktemp("proc"), tmp_path_factory.mktemp("site") / "out"
    (proc / "_quarto.yml").write_text("website: {title: Demo}\n")
    for name, (title, text) in PAGES.items():
        path = proc / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shown = f"{path.stem.partition('_')[2] or path.stem}.html"  # as nbdev names it
        path.write_text(f"---\ntitle: {title}\noutput-file: {shown}\n---\n\n{text}\n")
    assert build(proc, site) == len(PAGES)
    with served(site) as at:
        yield at


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        # a title, a guide's heading, a guide's text, the reference, and last an internal page that only mentions it
        (
            "trainer",
            [
                "train/trainer",
                "tutorials/module#which-trainer",
                "explanation/words",
                "reference/commands",
                "checks/typos",
            ],
        ),
        ("vscode", ["tutorials/editors"]),
        ("finetune", []),
        ("fine-tune", ["explanation/words"]),
        ("digests", ["checks/typos"]),
        ("no such thing", []),
    ],
)
def test_what_a_reader_looks_for_comes_first(address, browser_page, words, expected):
    assert browser_page.goto(f"{address}/explanation/words.html").ok
    browser_page.get_by_label("Search").fill(words)
    browser_page.wait_for_function("of => document.getElementById('hits').dataset.of === of", arg=words)
    links = browser_page.locator("#hits a").evaluate_all("all => all.map(one => one.href)")
    assert [link.removeprefix(f"{address}/").replace(".html", "") for link in links] == expected
    assert not browser_page.said
