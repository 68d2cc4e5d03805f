"""`fsdl git-setup` in real repositories: a conflict that a person resolves, a merge that exports, and an exact undo."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import nbformat
import pytest
from repository import ROOT

CELLS = [
    "# Train\n\n> A model.",
    "#| default_exp train",
    "#| export\nRATE = 0.1",
    "#| export\ndef fit():\n    return RATE * 2",
    "assert fit() == RATE * 2",
]


def git(folder: Path, *words: str, ok: bool = True) -> str:
    "What git prints, to both outputs."
    identity = [
        "-c",
        "user.name=Some One",
        "-c",
        "user.email=someone@example.com",
        "-c",
        "commit.gpgsign=false",
    ]
    done = subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True, text=True)
    assert (done.returncode == 0) == ok, (words, done.stdout, done.stderr)
    return done.stdout + done.stderr


def fsdl(folder: Path, *words: str, code: int = 0, python: Path | str = sys.executable) -> str:
    done = subprocess.run([str(python), "-m", "fsdl_dev", *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def change(path: Path, number: int, source: str | None = None, after: str | None = None) -> None:
    "Change a cell, or put one behind it, as JupyterLab would save it: with counts."
    notebook = nbformat.read(path, 4)
    if source is not None:
        notebook.cells[number].source = source
    if after is not None:
        cell = nbformat.v4.new_code_cell(after, id=f"new-{abs(hash(after)) % 10**6}")
        notebook.cells.insert(number + 1, cell)
    for count, cell in enumerate(notebook.cells):
        if cell.cell_type == "code":
            cell.execution_count = count + 1
    nbformat.write(notebook, path)


def commit(folder: Path, message: str) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", message)


def sources(path: Path) -> list[str]:
    return [cell.source for cell in nbformat.read(path, 4).cells]


def state(folder: Path) -> dict[str, bytes]:
    "The files of .git that git-setup may touch."
    kept = folder / ".git"
    names = ["config", "info/attributes", *(f"hooks/{name}" for name in ("pre-commit", "post-merge"))]
    found = {name: (kept / name).read_bytes() for name in names if (kept / name).exists()}
    return found | {
        "folders": str(
            sorted(p.name for p in kept.iterdir() if p.is_dir() and p.name not in ("objects",))
        ).encode()
    }


def export(folder: Path, python: Path | str = sys.executable) -> None:
    call = "from nbdev.doclinks import nbdev_export; nbdev_export.__wrapped__()"
    subprocess.run([str(python), "-c", call], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def project(make_project):
    "An exported project of nbdev, committed, with the branch `faster` at the same commit."
    folder = make_project(notebooks={"00_train.ipynb": CELLS})
    git(folder, "branch", "faster")
    return folder


def test_a_conflict_is_cells_and_the_package_follows(project):
    """Two people change one line: the notebook opens, says whose version is whose, and once one is chosen the commit
    has the package that belongs to it.
    """
    config = Path(os.environ["GIT_CONFIG_GLOBAL"]).read_bytes()
    before = state(project)
    said = fsdl(project, "git-setup")
    assert said.count("✓") == 4 and "nbdev_merge" in said, said
    book, module = project / "nbs" / "00_train.ipynb", project / "smallproj" / "train.py"

    git(project, "checkout", "-q", "faster")
    change(book, 3, "#| export\ndef fit():\n    return RATE * 30")
    export(project)
    commit(project, "faster")
    git(project, "checkout", "-q", "main")
    change(book, 3, "#| export\ndef fit():\n    return RATE * 5")
    export(project)

    shown = git(project, "diff")  # cells, not JSON; the counts of the runs are no change
    assert "── fit (code, export)" in shown and "+    return RATE * 5" in shown, shown
    assert "execution_count" not in shown and '"source"' not in shown
    commit(project, "slower")
    assert 'execution_count": null' in git(project, "show", "HEAD:nbs/00_train.ipynb")

    said = git(project, "merge", "faster", ok=False)
    assert "choose between the cells" in said and "CONFLICT" in said, said
    assert "train.py" not in git(project, "diff", "--name-only", "--diff-filter=U")
    both = sources(book)  # any program opens it
    assert [text.strip("`").split()[0] for text in both if text[:2] in ("`<", "`=", "`>")] == [
        "<<<<<<<",
        "=======",
        ">>>>>>>",
    ]
    assert any("* 5" in text for text in both) and any("* 30" in text for text in both)

    git(project, "add", "-A")  # too early
    said = git(project, "commit", "-qm", "merged", ok=False)
    assert "the merge is not committed" in said and "conflict in cell" in said, said

    notebook = nbformat.read(book, 4)
    notebook.cells = [c for c in notebook.cells if not c.source.startswith("`") and "* 5" not in c.source]
    nbformat.write(notebook, book)
    git(project, "add", "-A")
    said = git(project, "commit", "-qm", "merged")
    assert "exported again for this merge" in said, said
    assert "RATE * 30" in module.read_text() and "RATE * 30" in git(
        project, "show", "HEAD:smallproj/train.py"
    )
    assert (
        not git(project, "status", "--porcelain")
        and len(git(project, "rev-list", "--merges", "HEAD").split()) == 1
    )

    assert "taken out" in fsdl(project, "git-setup", "--undo")
    assert state(project) == before and Path(os.environ["GIT_CONFIG_GLOBAL"]).read_bytes() == config


def test_a_merge_without_a_conflict_has_the_package_of_both(project):
    "Git commits such a merge by itself: the package of that commit has the cells of both sides."
    fsdl(project, "git-setup")
    book = project / "nbs" / "00_train.ipynb"
    git(project, "checkout", "-q", "faster")
    change(book, 2, after="#| export\ndef early():\n    return 1")
    export(project)
    commit(project, "early")
    git(project, "checkout", "-q", "main")
    change(book, 4, after="#| export\ndef late():\n    return 2")
    export(project)
    commit(project, "late")
    said = git(project, "merge", "--no-edit", "faster")
    assert "exported again for this merge" in said, said
    text = git(project, "show", "HEAD:smallproj/train.py")
    assert (
        "def early" in text
        and "def late" in text
        and "<<<<" not in text
        and "'early'" in text
        and "'late'" in text
    )
    assert not git(project, "status", "--porcelain")


def test_what_was_there_stays(project):
    "Attributes and hooks of the user's own are named and left; a second set-up and an undo change nothing of them."
    (project / ".gitattributes").write_text("*.ipynb filter=nbstripout\n")
    hook = project / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 0\n")
    git(project, "config", "filter.nbstripout.clean", "cat")
    before = state(project)
    for _ in range(2):
        said = fsdl(project, "git-setup")
        assert "filter stays 'nbstripout'" in said and "pre-commit is a hook of your own" in said, said
    assert git(project, "check-attr", "filter", "merge", "--", "nbs/x.ipynb").split() == [
        "nbs/x.ipynb:",
        "filter:",
        "nbstripout",
        "nbs/x.ipynb:",
        "merge:",
        "fsdl-notebook",
    ]
    assert hook.read_text() == "#!/bin/sh\nexit 0\n" and not hook.with_name("post-merge").exists()
    git(project, "config", "alias.lg", "log")  # the file changed since: only our lines go
    fsdl(project, "git-setup", "--undo")
    git(project, "config", "--unset", "alias.lg")
    assert state(project) == before
    assert "has nothing of fsdl git-setup" in fsdl(project, "git-setup", "--undo", code=2)


def test_the_hook_of_nbdev_goes_on(project):
    "nbdev_install_hooks leaves a hook post-merge; it is called as before, and is back after an undo."
    hook = project / ".git" / "hooks" / "post-merge"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/bash\nnbdev_trust")
    hook.chmod(0o755)
    before = state(project)
    for _ in range(2):
        assert fsdl(project, "git-setup").count("✓") == 4
    assert "\nnbdev_trust\nexec " in hook.read_text()
    fsdl(project, "git-setup", "--undo")
    assert state(project) == before and os.access(hook, os.X_OK)


def test_a_broken_notebook_is_committed_as_it_is(project):
    fsdl(project, "git-setup")
    broken = project / "nbs" / "00_train.ipynb"
    broken.write_text('{"cells": [')
    said = git(project, "add", "-A")
    assert "no readable notebook, and is committed as it is" in said, said
    assert git(project, "show", ":nbs/00_train.ipynb") == '{"cells": ['
    assert '+{"cells": [' in git(project, "diff", "--cached")


def test_folders_that_are_none_or_share(project, tmp_path):
    "No repository, a second work tree, and a project in a folder with a blank below the repository's."
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "settings.ini").write_text((project / "settings.ini").read_text())
    assert "in no git repository" in fsdl(alone, "git-setup", code=2)

    tree = tmp_path / "second tree"
    git(project, "worktree", "add", "-q", str(tree), "faster")
    before = state(project)
    assert "also in the other work trees" in fsdl(tree, "git-setup")
    change(tree / "nbs" / "00_train.ipynb", 3, "#| export\ndef fit():\n    return 9")
    assert "── fit (code, export)" in git(tree, "diff")
    fsdl(project, "git-setup", "--undo")
    assert state(project) == before


def test_a_project_below_the_repository(make_project, tmp_path):
    top = tmp_path / "mono repo"
    folder = make_project(folder=top / "my part", notebooks={"00_train.ipynb": CELLS}, git=False)
    git(top.parent, "init", "-q", "-b", "main", str(top))
    commit(top, "first")
    fsdl(folder, "git-setup")
    git(top, "checkout", "-qb", "faster")
    book = folder / "nbs" / "00_train.ipynb"
    change(book, 2, after="#| export\ndef early():\n    return 1")
    export(folder)
    commit(top, "early")
    git(top, "checkout", "-q", "main")
    change(book, 4, after="#| export\ndef late():\n    return 2")
    export(folder)
    commit(top, "late")
    said = git(top, "merge", "--no-edit", "faster")
    assert "exported again for this merge: my part/smallproj/" in said, said
    assert "def early" in git(top, "show", "HEAD:my part/smallproj/train.py")


@pytest.fixture(scope="session")
def nbdime_python(tmp_path_factory) -> Path:
    """A Python with nbdime in front of all that this one has: here it would put its own extension into JupyterLab."""
    folder = tmp_path_factory.mktemp("nbdime") / "venv"
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "-q", "--no-deps", "nbdime>=4", "colorama"]
    made = subprocess.run(install, text=True, capture_output=True)
    if made.returncode:
        pytest.skip(f"nbdime could not be installed: {made.stderr.strip()[-300:]}")
    there = next(folder.glob("lib/python*/site-packages"))
    (there / "behind.pth").write_text(f"{ROOT}\n{sysconfig.get_paths()['purelib']}\n")
    return python


def test_a_project_without_nbdev_asks_for_nbdime(make_project):
    folder = make_project(nbdev=0, notebooks={"study.ipynb": ["x = 1"]})
    assert "pip install nbdime" in fsdl(folder, "git-setup", code=2)


@pytest.mark.slow
def test_a_project_without_nbdev_has_nbdime(make_project, nbdime_python):
    folder = make_project(nbdev=0, notebooks={"study.ipynb": ["x = 1\ny = 2", "print(x)"]})
    assert "nbdime merges notebooks" in fsdl(folder, "git-setup", python=nbdime_python)
    book = folder / "nbs" / "study.ipynb"
    git(folder, "checkout", "-qb", "faster")
    change(book, 0, "x = 1\ny = 30")
    commit(folder, "faster")
    git(folder, "checkout", "-q", "main")
    change(book, 0, "x = 1\ny = 5")
    commit(folder, "slower")
    said = git(folder, "merge", "faster", ok=False)
    assert "CONFLICT" in said and "choose between the cells" in said, said
    text = "\n".join(sources(book))  # any program opens it
    assert "y = 30" in text and "y = 5" in text and "<<<<<<<" in text
    change(book, 0, "x = 1\ny = 30")
    commit(folder, "merged")
    assert not git(folder, "status", "--porcelain")


@pytest.mark.tier("long")
@pytest.mark.slow
def test_a_project_of_nbdev3(make_project, nbdev3_python):
    "nbdev 3 has other names for its commands; the same merge, by its own driver and export."
    there = next(nbdev3_python.parent.parent.glob("lib/python*/site-packages"))
    (there / "behind.pth").write_text(f"{ROOT}\n{sysconfig.get_paths()['purelib']}\n")
    folder = make_project(nbdev=3, python=nbdev3_python, notebooks={"00_train.ipynb": CELLS})
    assert "nbdev-merge merges notebooks" in fsdl(folder, "git-setup", python=nbdev3_python)
    book = folder / "nbs" / "00_train.ipynb"
    for branch, number in (("faster", 30), ("slower", 5)):
        git(folder, "checkout", "-qb", branch, "main")
        change(book, 3, f"#| export\ndef fit():\n    return RATE * {number}")
        export(folder, nbdev3_python)
        commit(folder, branch)
    assert "choose between the cells" in git(folder, "merge", "faster", ok=False)
    notebook = nbformat.read(book, 4)
    notebook.cells = [c for c in notebook.cells if not c.source.startswith("`") and "* 5" not in c.source]
    nbformat.write(notebook, book)
    git(folder, "add", "-A")
    assert "exported again for this merge" in git(folder, "commit", "-qm", "merged")
    assert "RATE * 30" in git(folder, "show", "HEAD:smallproj/train.py")
    fsdl(folder, "git-setup", "--undo", python=nbdev3_python)
