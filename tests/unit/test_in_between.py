"""Between the look at the code and the snapshot lie the gates: what is saved in that time is noticed."""

import json

import pytest

import fsdl_dev
from fsdl_dev.core.check import LaunchRefused
from fsdl_dev.launcher import submit
from fsdl_dev.launcher.gates import GATES
from fsdl_dev.launcher.launch import Gate

CELLS = [
    "#| default_exp train",
    "#| export\nLR = 1e-3\n\ndef fit(): return LR",
    "%%fsdl_launch\nprint(fit())",
]


@pytest.fixture
def launch(make_project, monkeypatch):
    """Launch the cell; while the gates are asked, `meanwhile` happens."""
    project = make_project(notebooks={"00_train.ipynb": CELLS})

    def build(meanwhile):
        saved = Gate("saved meanwhile", "project", "A file is saved.", lambda launch: meanwhile(project))
        gates = [gate for known in GATES for gate in ([known, saved] if known.name == "tags" else [known])]
        monkeypatch.setattr(submit, "all_gates", lambda: gates)
        return fsdl_dev.launch("nbs/00_train.ipynb", cell="3", folder=project, on="test", no_test=True)

    return build


def edit(path, old, new):
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize("file", ["smallproj/train.py", "nbs/00_train.ipynb"])
def test_code_saved_meanwhile_is_not_launched(launch, file):
    with pytest.raises(LaunchRefused, match=f"{file} changed while the launch was being checked"):
        launch(lambda project: edit(project / file, "1e-3", "1e-4"))
    assert fsdl_dev.runs(folder=".") == [] or all(run.name != "train" for run in fsdl_dev.runs(folder="."))


def test_outputs_and_other_files_may_be_saved_meanwhile(launch):
    def autosave(project):
        path = project / "nbs/00_train.ipynb"
        notebook = json.loads(path.read_text())
        notebook["cells"][1]["execution_count"], notebook["metadata"]["language_info"] = 7, {"name": "python"}
        path.write_text(json.dumps(notebook))
        (project / "notes.txt").write_text("of no concern")

    assert launch(autosave).wait(300, progress=False).state == "succeeded"


@pytest.mark.parametrize("what", ["train.py", "nbs/study.ipynb", "smallproj.train:fit"])
def test_a_package_behind_its_notebooks_is_exported_first(make_project, what):
    """A notebook was edited and saved, and nobody exported it: what imports the package gets what the notebook says."""
    project = make_project(
        notebooks={
            "00_train.ipynb": CELLS[:2],
            "study.ipynb": ["from smallproj.train import LR", "open('said.txt', 'w').write(str(LR))"],
        }
    )
    (project / "train.py").write_text(
        "from smallproj.train import LR\nopen('nbs/said.txt', 'w').write(str(LR))\n"
    )
    edit(project / "nbs/00_train.ipynb", "1e-3", "0.5")
    run = fsdl_dev.launch(what, folder=project, on="test", no_test=True).wait(300, progress=False)
    assert (run.result if ":" in what else float((project / "nbs/said.txt").read_text())) == 0.5
