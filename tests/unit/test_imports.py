"""A snapshot has what a job imports, wherever Python finds it: ignored by git, in src layouts, in other folders."""

import shutil
import sys
from pathlib import Path

import pytest
from conftest import commit_all, write_notebook

import fsdl_dev
from fsdl_dev.core.errors import FsdlError
from fsdl_dev.core.protocol import IMPORTS
from fsdl_dev.core.settings import find_project
from fsdl_dev.launcher.gates import outside_checks
from fsdl_dev.launcher.spec import job_from_spec
from fsdl_dev.snapshot.imports import find_imports, find_module
from fsdl_dev.snapshot.take import take_snapshot

MAIN = "def main(x=1):\n    return x\n"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def taken(root: Path, what: str):
    """The snapshot of a launch from a folder, and what its job imports."""
    job, project = job_from_spec(what, folder=root)
    imports = find_imports(project, job)
    return take_snapshot(project, imports=imports), imports


@pytest.fixture
def root(tmp_path) -> Path:
    """A src layout, committed, without what its .gitignore names."""
    files = {
        "pyproject.toml": "[project]\nname = 'lay'\nversion = '1'\n",
        ".gitignore": "_version.py\n*_pb2.py\n.fsdl/\ngen/\n",
        "src/lay/__init__.py": "from ._version import version",
        "src/lay/_version.py": "version = 1",
        "src/lay/train.py": f"import gen.a_pb2\n{MAIN}",
        "gen/a_pb2.py": "",
        "gen/data.csv": "1",
        "train.py": "import lay.train\nprint(lay.version)",
    }
    root = write(tmp_path / "lay", files)
    commit_all(root)
    return root


def test_what_git_ignores_and_code_imports_is_in_the_snapshot(root):
    for what in ("train.py", "-m lay.train", "lay.train:main"):
        snapshot, _ = taken(root, what)
        assert {"src/lay/_version.py", "gen/a_pb2.py"} <= set(snapshot.files), what
        assert snapshot.beside == ("gen/data.csv",), "data is read in place"
    assert "src/lay/_version.py" not in take_snapshot(find_project(root)).files, "only for a job"
    with pytest.raises(FsdlError, match="no module 'lay.trian'.*lay.train"):
        job_from_spec("-m lay.trian", folder=root)


def test_code_of_other_folders_is_kept_or_said(root, tmp_path, monkeypatch):
    write(tmp_path, {"common/common/__init__.py": "X = 1", "common/common/words.txt": "a"})
    write(root, {"train.py": "import sys\nsys.path.append('../common')\nimport common\n"})
    snapshot, imports = taken(root, "train.py")
    assert {f"{IMPORTS}/common/__init__.py", f"{IMPORTS}/common/words.txt"} <= set(snapshot.files)
    (said,) = snapshot.outside_texts
    assert "common is imported from ../common: 2 files, kept in the snapshot" in said
    write(tmp_path, {"common/common/__init__.py": "X = 2"})
    again, _ = taken(root, "train.py")
    assert again.manifest["outside"][0]["digest"] != snapshot.manifest["outside"][0]["digest"]
    assert again.shown_path(f"{IMPORTS}/common/__init__.py") == "../common/common/__init__.py"

    monkeypatch.setattr("fsdl_dev.snapshot.imports._MOST_BYTES", 1)
    snapshot, imports = taken(root, "train.py")
    assert not any(path.startswith(IMPORTS) for path in snapshot.files)
    there, here = (type("T", (), {"remote": remote, "name": "lab"}) for remote in (True, False))
    checks = [outside_checks(imports, find_project(root), target)[0] for target in (there, here)]
    assert [check.verdict for check in checks] == ["fail", "warn"] and "lab does not have it" in checks[
        0
    ].message


def test_modules_are_found_as_python_finds_them(root, tmp_path, monkeypatch):
    write(root, {"lib/deep/ns/part/__init__.py": MAIN, "source/__init__.py": ""})
    monkeypatch.setattr(sys, "path", [*sys.path, str(root / "lib/deep")])  # as a .pth file adds it
    project = find_project(root)
    assert find_module("ns.part", project) == root / "lib/deep/ns/part/__init__.py"
    snapshot, imports = taken(root, "ns.part:main")
    assert imports.paths == snapshot.import_paths == ["lib/deep"]

    mapping = {"renamed": str(root / "source")}
    finder = type("Finder", (), {"__module__": "__editable___renamed_finder"})
    finder.find_spec = staticmethod(lambda name, path=None, target=None: editable_spec(mapping, name))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, finder])
    write(root, {"train.py": "import renamed"})
    snapshot, _ = taken(root, "train.py")
    entry = snapshot.files[f"{IMPORTS}/renamed"]
    assert entry["mode"] == "120000" and snapshot.content(entry["sha256"], "link") == b"../source"


def editable_spec(mapping: dict[str, str], name: str):
    """What a finder of an editable install of setuptools answers."""
    from importlib.util import spec_from_file_location

    return spec_from_file_location(name, f"{mapping[name]}/__init__.py") if name in mapping else None


def test_links_to_code_are_its_content(root, tmp_path):
    write(tmp_path, {"other/far.py": "import beside_far", "other/beside_far.py": ""})
    write(root, {"real/t.py": "import helper", "real/helper.py": ""})
    (root / "linked.py").symlink_to("real/t.py")
    (root / "far.py").symlink_to("../other/far.py")
    assert "real/helper.py" in taken(root, "linked.py")[1].files
    snapshot, imports = taken(root, "far.py")
    assert snapshot.files["far.py"]["mode"] != "120000", "the target is not on another machine"
    assert [one.name for one in imports.outside] == ["beside_far"]


def test_a_home_is_no_project_by_chance(root, monkeypatch):
    home = root.parent
    write(home, {"pyproject.toml": "[project]\nname = 'stray'\n", "a.py": "import b", "b.py": "", "c.py": ""})
    write(home, {"below/d.py": ""})
    monkeypatch.setenv("HOME", str(home))
    assert find_project(home / "below").root == home / "below"
    snapshot, _ = taken(home, "a.py")
    assert set(snapshot.files) == {"a.py", "b.py"} and "is no project" in snapshot.checks[0].message
    write(home, {"pyproject.toml": "[tool.fsdl_dev]\n"})
    assert find_project(home / "below").root == home and not find_project(home).loose


def test_keys_are_not_taken_from_a_folder_without_git(root):
    shutil.rmtree(root / ".git")
    names = (".ssh/id_rsa", ".netrc", ".aws/credentials", ".cache/huggingface/token", "cert.key")
    write(root, dict.fromkeys(names, "x"))
    snapshot, _ = taken(root, "train.py")
    assert set(names).isdisjoint(snapshot.files)
    assert any("keys or passwords" in check.message for check in snapshot.checks)


def test_other_notebooks_are_a_line(make_project):
    cells = ["#| default_exp core", "#| export\ndef train(x=1):\n    return x"]
    root = make_project(notebooks={"00_core.ipynb": cells})
    write_notebook(root / "nbs" / "01_scratch.ipynb", ["#| default_exp scratch", "assert 1 == 2"])
    write_notebook(root / "nbs" / "02_torn.ipynb", ["#| default_exp torn", "#| export\ndef f(:"])
    (root / "nbs" / "03_cut.ipynb").write_text('{"cells": [')
    checks = fsdl_dev.check("smallproj.core:train", folder=root, say=None)
    assert not any(check.failed for check in checks), checks
    texts = [check.message for check in checks if check.name in ("export", "tests")]
    assert any(
        "02_torn.ipynb is not exported" in text and "Not part of this launch" in text for text in texts
    )
    assert any("03_cut.ipynb is not exported" in text for text in texts)
    assert any(text.startswith("2 of 2 changed notebooks not tested") for text in texts), texts

    write_notebook(
        root / "nbs" / "00_core.ipynb", [*cells, "#| export\ndef late():\n    from smallproj import torn"]
    )
    checks = fsdl_dev.check("smallproj.core:train", folder=root, say=None)
    failed = [check for check in checks if check.failed]
    assert ["02_torn.ipynb, cell 2" in check.where for check in failed] == [True], failed
