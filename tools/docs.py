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
# The order a reader needs, not the order of the layers. A tutorial that is named nowhere stands with the first ones.
TUTORIALS = {
    "First steps": ("quickstart", "from_cell_to_run", "what_is_shipped", "environments"),
    "Training that scales": ("does_it_fit", "one_gpu_to_many", "cutting_the_model", "long_runs"),
    "Where it runs": ("targets", "ssh", "slurm", "ray", "kubernetes", "clouds", "your_own_queue"),
}
SECTIONS = {
    "notebook": "In the notebook",
    "launch": "Launching",
    "targets": "Remote targets",
    "runs": "Runs",
    "parallel": "Parallel training",
    "train": "Training",
    "models": "Models",
    "data": "Data",
    "core": "Foundations",
}


def tutorial_sections() -> list[dict]:
    """The tutorials by subject."""
    paths = {path.stem.partition("_")[2]: f"tutorials/{path.name}" for path in sorted((NOTEBOOKS / "tutorials").glob("[!._]*.ipynb"))}
    placed = {name for names in TUTORIALS.values() for name in names}
    if missing := placed - set(paths):
        raise SystemExit(f"tools/docs.py names tutorials that are not there: {', '.join(sorted(missing))}")
    chapters = {title: list(names) for title, names in TUTORIALS.items()}
    next(iter(chapters.values())).extend(name for name in paths if name not in placed)
    return [{"section": title, "contents": [paths[name] for name in names]} for title, names in chapters.items()]


def sidebar_text() -> str:
    """The sidebar of the site: the tutorials by subject, and a titled section for each folder of notebooks, in the order above."""
    contents: list = [{"text": "Overview", "href": "index.ipynb"}, *tutorial_sections()]
    for folder, title in SECTIONS.items():
        pages = sorted(path.relative_to(NOTEBOOKS).as_posix() for path in (NOTEBOOKS / folder).glob("[!._]*.ipynb"))
        if pages:
            contents.append({"section": title, "contents": pages})
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
    parser.add_argument("--substitute", action="store_true", help="render without Quarto even where it is installed")
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
        print("  fix: the build executes import cells; they may need nothing from other cells", file=sys.stderr)
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
