"""A launch from JupyterLab, as a person does it in the browser: run all, edit without running, forget to save."""

import os
from pathlib import Path

import pytest
from conftest import commit_all
from lab import LabPage, browser_page, jupyterlab
from playwright.sync_api import expect

from fsdl_dev.api import load_run
from fsdl_dev.core.rundir import list_run_ids

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("chromium")]
NOTEBOOK = {
    "00_train.ipynb": [
        "# Train\n\n> A study.",
        "#| default_exp train",
        "%load_ext fsdl_dev",
        "#| export\nimport fsdl_dev",
        (
            "#| export\ndef train(lr: float) -> float:\n    loss = 9.0\n    for step in range(20):\n       "
            " loss *= 1 - lr\n        fsdl_dev.log(step=step, loss=loss)\n    print('ended with', loss)\n   "
            " return loss"
        ),
        "%%fsdl_launch --on test --param lr=0.5 --as run\n#| eval: false\ntrain(lr)",
        "#| eval: false\nrun.wait(progress=False)",
    ]
}
TRAIN, LAUNCH, SHOWN = 4, 5, 6  # where these cells stand, prose counted


def edit(lab: LabPage, index: int, old: str, new: str) -> None:
    "Change a cell's text in the page, as typing does."
    lab.page.evaluate(
        """([index, was, now]) => { const cells = window.jupyterapp.shell.currentWidget.content.widgets;
        const source = cells[index].model.sharedModel;
        const text = source.getSource(); if (!text.includes(was)) throw new Error(text);
        source.setSource(text.replace(was, now)) }""",
        [index, old, new],
    )


def test_launch_from_the_browser(make_project, tmp_path):
    """Run all: the card lives and is final.

    An edit that did not run is refused, with a link to its cell; one that was not saved is waited for.
    """
    root, home = (
        make_project(notebooks=NOTEBOOK, folder=tmp_path / "mon projet é", git=False),
        tmp_path / "home",
    )
    home.mkdir()
    commit_all(root)
    store = Path(os.environ["FSDL_STORE"])
    with jupyterlab(root, home) as (address, token), browser_page(width=1100, height=900) as page:
        lab = LabPage(page, address, token).open("nbs/00_train.ipynb")
        lab.command("notebook:run-all-cells")
        expect(lab.cell(LAUNCH)).to_contain_text("succeeded")
        expect(lab.cell(SHOWN)).to_contain_text("succeeded")
        expect(lab.cell(LAUNCH).locator("img:visible").first).to_be_visible()  # the curve
        expect(lab.cell(LAUNCH).locator("button.jupyter-button")).to_have_count(0)
        expect(lab.cell(2)).to_contain_text("runs go to 'local'")
        lab.idle()
        lab.no_broken_widgets()
        run = load_run("last", root)
        assert (
            run.state == "succeeded"
            and "ended with" in run.logs()
            and run.job.cell_id == "cell05"
            and len(list_run_ids(store)) == 1
        )

        def refused(*texts: str) -> None:
            lab.start_cell(LAUNCH)
            for text in texts:
                expect(lab.cell(LAUNCH)).to_contain_text(text)
            lab.idle()
            assert "Traceback" not in lab.cell(LAUNCH).inner_text() and len(list_run_ids(store)) == 1

        edit(lab, TRAIN, "loss *= 1 - lr", "loss *= 1 - lr / 2")
        lab.save()
        refused("Not launched", "edited after it ran", "cell 4 “train”", "run cell 4 again")
        page.screenshot(path=os.environ.get("FSDL_SCREENSHOT") or str(tmp_path / "refused.png"))
        link = (
            lab.cell(LAUNCH).locator('a[href="#cell-id=cell04"]').first
        )  # the place; the fix links to it as well
        expect(link).to_contain_text("[4] nbs/00_train.ipynb, cell 4 “train”")
        expect(lab.cell(LAUNCH)).to_contain_text("under “Train”")
        link.click()
        page.wait_for_url("**#cell-id=cell04")

        lab.start_cell(TRAIN)
        lab.idle()
        edit(lab, TRAIN, "lr / 2", "lr / 4")
        lab.start_cell(TRAIN)  # it ran, and is not saved: the launch waits for that
        lab.idle()
        lab.start_cell(LAUNCH)
        expect(lab.cell(LAUNCH)).to_contain_text("to save the notebook (Ctrl+S)")
        lab.save()
        expect(lab.cell(LAUNCH)).to_contain_text("succeeded")
        assert len(list_run_ids(store)) == 2 and "lr / 4" in (root / "smallproj" / "train.py").read_text()
        assert not [line for line in page.said if "widget" in line.lower()]
