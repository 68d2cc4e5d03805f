"""Build the documentation site in _docs: nbdev's preprocessing, then Quarto or, without it, the substitute.

nbdev's own commands install Quarto by sudo and curl when they do not find it. This calls the same functions of
nbdev beneath them and never installs anything.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "nbs"
# The guides by the reader's task. A guide that is named nowhere stands with the first ones.
GUIDES = {
    "Tutorials": (
        "tutorials/quickstart",
        "tutorials/from_cell_to_run",
        "tutorials/does_it_fit",
        "tutorials/one_gpu_to_many",
        "tutorials/cutting_the_model",
    ),
    "How to": (
        "tutorials/targets",
        "tutorials/ssh",
        "tutorials/slurm",
        "tutorials/ray",
        "tutorials/kubernetes",
        "tutorials/clouds",
        "tutorials/environments",
        "tutorials/long_runs",
        "tutorials/your_own_queue",
    ),
    "Explanation": (
        "tutorials/what_is_shipped",
        "explanation/agreement",
        "explanation/architecture",
        "explanation/glossary",
    ),
}
# The house, from the front doors down; the order is that of the layers in pyproject.toml.
REFERENCE = {
    "notebook": "In the notebook",
    "cli": "Command line",
    "cards": "Cards",
    "records": "Records of runs",
    "submit": "Submitting",
    "engines": "Engines",
    "worker": "The worker",
    "checks": "Checks",
    "snapshot": "Snapshots",
    "agreement": "Agreement",
    "train": "Training",
    "planner": "Planning",
    "parallel": "Parallel models",
    "models": "Models",
    "data": "Data",
    "core": "Core",
}


def guide_sections() -> list[dict]:
    """The guides, by what the reader wants to do."""
    folders = [NOTEBOOKS / name for name in ("tutorials", "explanation")]
    paths = {
        f"{folder.name}/{path.stem.partition('_')[2]}": path.relative_to(NOTEBOOKS).as_posix()
        for folder in folders
        for path in sorted(folder.glob("[!._]*.ipynb"))
    }
    placed = {name for names in GUIDES.values() for name in names}
    if missing := placed - set(paths):
        raise SystemExit(f"tools/docs.py names guides that do not exist: {', '.join(sorted(missing))}")
    chapters = {title: list(names) for title, names in GUIDES.items()}
    next(iter(chapters.values())).extend(name for name in paths if name not in placed)
    return [{"section": t, "contents": [paths[name] for name in names]} for t, names in chapters.items()]


def reference_section(folder: Path, title: str) -> dict:
    """A folder's notebooks in reading order, then its subfolders."""
    pages = sorted(path.relative_to(NOTEBOOKS).as_posix() for path in folder.glob("[!._]*.ipynb"))
    below = [path for path in sorted(folder.iterdir()) if path.is_dir() and path.name[0] not in "._"]
    inner = [reference_section(path, f"{title}: {path.name}") for path in below]
    return {"section": title, "contents": [*pages, *inner]}


def sidebar_text() -> str:
    """The sidebar of the site: guides first, the API reference by folder behind them."""
    reference = [
        reference_section(NOTEBOOKS / folder, title)
        for folder, title in REFERENCE.items()
        if (NOTEBOOKS / folder).exists()
    ]
    contents: list = [
        {"text": "Overview", "href": "index.ipynb"},
        *guide_sections(),
        {"section": "API reference", "contents": ["api.ipynb", *reference]},
    ]
    head = "# Written by `make prepare`; the order and the titles are in tools/docs.py.\n"
    return head + yaml.safe_dump({"website": {"sidebar": {"contents": contents}}}, sort_keys=False)


def preprocess() -> Path:
    """Run nbdev's processors over every notebook, as nbdev_docs does; return the folder `_proc`."""
    from nbdev.quarto import refresh_quarto_yml
    from nbdev.serve import proc_nbs

    (NOTEBOOKS / "sidebar.yml").write_text(sidebar_text())
    refresh_quarto_yml()
    return Path(proc_nbs(n_workers=min(2, os.cpu_count() or 1), force=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sidebar-only", action="store_true", help="write nbs/sidebar.yml and stop")
    parser.add_argument(
        "--substitute", action="store_true", help="render without Quarto even where it is installed"
    )
    options = parser.parse_args()
    os.chdir(ROOT)
    if options.sidebar_only:
        (NOTEBOOKS / "sidebar.yml").write_text(sidebar_text())
        return 0
    site = ROOT / "_docs"
    print("docs: preprocessing the notebooks ...", flush=True)
    try:
        proc = preprocess()
    except Exception as error:  # nbdev names the notebook by its title, and shows the cell
        print(f"docs: {str(error).strip()}", file=sys.stderr)
        print(
            "  fix: the build executes import cells; they may need nothing from other cells", file=sys.stderr
        )
        return 1
    if shutil.which("quarto") and not options.substitute:
        print("docs: rendering with Quarto ...", flush=True)
        if subprocess.run(["quarto", "render", "--no-cache"], cwd=proc).returncode:
            return 1
        shutil.rmtree(site, ignore_errors=True)
        shutil.move(str(proc / "_docs"), site)
    else:
        from docs_preview.site import build

        print("docs: no Quarto here, rendering with the substitute (tools/docs_preview) ...", flush=True)
        print(f"docs: {build(proc, site)} pages")
    print(f"docs: open {site / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
