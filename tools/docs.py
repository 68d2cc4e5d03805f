"""Build the documentation site in _docs: nbdev's preprocessing, then Quarto or, without it, the substitute. Then walk
it in a browser: no dead link, no error of the console, no request to another machine.

nbdev's own commands install Quarto by sudo and curl when they do not find it. This calls the same functions of
nbdev beneath them and never installs anything.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import yaml
from llms import llms_text
from reference import PAGES, write_reference
from versions import name_version, this_version
from walk import report_walk

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "nbs"
COMMANDS = "/cli/"  # in the address of a page on commands
# The guides by the reader's task. A guide that is named nowhere stands with the first ones.
GUIDES = {
    "Tutorials": (
        "tutorials/quickstart",
        "tutorials/templates",
        "tutorials/from_cell_to_run",
        "tutorials/a_lightning_module",
        "tutorials/coming_from",
        "tutorials/bring_your_old_runs",
        "tutorials/does_it_fit",
        "tutorials/what_will_it_cost",
        "tutorials/one_gpu_to_many",
        "tutorials/cutting_the_model",
        "tutorials/a_sweep",
        "tutorials/let_an_agent_drive",
    ),
    "How to": (
        "tutorials/troubleshooting",
        "tutorials/targets",
        "tutorials/ssh",
        "tutorials/slurm",
        "tutorials/ray",
        "tutorials/kubernetes",
        "tutorials/clouds",
        "tutorials/tpu_and_sagemaker",
        "tutorials/other_frameworks",
        "tutorials/environments",
        "tutorials/environments_that_fit",
        "tutorials/my_data_is_elsewhere",
        "tutorials/long_runs",
        "tutorials/resume_elsewhere",
        "tutorials/why_it_waits",
        "tutorials/rehearse_and_debug",
        "tutorials/find_runs",
        "tutorials/editors",
        "tutorials/notebooks_in_git",
        "tutorials/repeat_a_run",
        "tutorials/promote",
        "tutorials/what_a_certificate_proves",
        "tutorials/close_the_loop",
        "tutorials/a_page_for_the_team",
        "tutorials/platform_owner",
        "tutorials/rules_of_a_team",
        "tutorials/slurm_enforces",
        "tutorials/capacity_and_waste",
        "tutorials/trackers",
        "tutorials/numbers",
        "tutorials/ci",
        "tutorials/outside_jupyterlab",
        "tutorials/disk_use",
        "tutorials/several_users",
        "tutorials/your_own_queue",
        "tutorials/agent_clients",
    ),
    "Explanation": (
        "explanation/tour",
        "tutorials/what_is_shipped",
        "explanation/agreement",
        "tutorials/paths_counted",
        "explanation/architecture",
        "explanation/glossary",
        "explanation/on_premise_or_cloud",
        "explanation/what_the_meter_counts",
        "explanation/on_a_gpu",
        "tutorials/what_became_of",
    ),
}
# The house, from the front doors down; the order is that of the layers in pyproject.toml.
REFERENCE = {
    "notebook": "In the notebook",
    "cli": "Command line",
    "agent": "Agents",
    "board": "Board",
    "cards": "Cards",
    "feedback": "Feedback and retraining",
    "share": "Sharing runs",
    "sweep": "Sweeps",
    "launcher": "Launching",
    "importers": "Runs of other trackers",
    "records": "Records of runs",
    "environments": "Environments",
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
    "policy": "Policy",
    "money": "Money",
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
    """The sidebar of the site: guides, the user's reference, and the internals by folder behind them."""
    reference = [
        reference_section(NOTEBOOKS / folder, title)
        for folder, title in REFERENCE.items()
        if (NOTEBOOKS / folder).exists()
    ]
    internals = {
        "section": "Internals",
        "contents": ["api.ipynb", "command.ipynb", *reference],
    }  # folded, as all below a section
    contents: list = [
        {"text": "Overview", "href": "index.ipynb"},
        *guide_sections(),
        {"section": "Reference", "contents": [f"reference/{name}.qmd" for name in PAGES] + [internals]},
    ]
    head = "# Written by `make prepare`; the order and the titles are in tools/docs.py.\n"
    return head + yaml.safe_dump({"website": {"sidebar": {"contents": contents}}}, sort_keys=False)


def process_notebook(source: Path, target: Path) -> str:
    """Write a notebook as nbdev's processors leave it; return why it could not be executed, else "".

    The processors execute what an API page needs. A page whose cells fail keeps its saved outputs.
    """
    from execnb.nbio import read_nb, write_nb
    from nbdev.processors import FilterDefaults, exec_show_docs, mk_cell

    class Unexecuted(FilterDefaults):
        def base_procs(self):
            return [processor for processor in super().base_procs() if processor is not exec_show_docs]

    failure, notebook = "", read_nb(source)
    try:
        FilterDefaults()(notebook)
    except Exception as error:  # of any cell of that notebook
        cause = error.__cause__ or error
        line = next((line for line in str(error).splitlines()[1:] if line and line[:2] != "#|"), "")
        failure = f"{type(cause).__name__}: {cause}" + (f" (in the cell of `{line}`)" if line else "")
        notebook = read_nb(source)
        Unexecuted()(notebook)
        notice = f"::: {{.callout-warning}}\nThis page was built without executing it. {failure}\n:::"
        notebook.cells.insert(1, mk_cell(notice, cell_type="markdown"))
    for output in (output for cell in notebook.cells for output in cell.get("outputs", [])):
        data = output.get("data", {})
        if "text/markdown" in data:
            data["text/markdown"] = without_links_in_code("".join(data["text/markdown"]))
    target.parent.mkdir(parents=True, exist_ok=True)
    write_nb(notebook, target)
    return failure


def without_links_in_code(text: str) -> str:
    """Code blocks as they were: nbdev links names in backticks in a signature's comments too."""
    plain = lambda block: re.sub(r"\[(`[^`\n]+`)\]\([^)\n]*\)", r"\1", block[0])
    return re.sub(r"(?ms)^```.*?^```", plain, text)


def preprocess(workers: int = min(4, os.cpu_count() or 1)) -> Path:
    """Run nbdev's processors over every notebook, as nbdev_docs does; return the folder `_proc`.

    The workers are forked from this process, which has imported what the notebooks import.
    """
    from docs import process_notebook  # not of __main__, which a notebook's shell replaces in its process
    from nbdev.config import get_config
    from nbdev.doclinks import NbdevLookup, nbglob
    from nbdev.quarto import refresh_quarto_yml

    proc, folder = Path(get_config().config_path) / "_proc", Path(get_config().nbs_path)
    (folder / "sidebar.yml").write_text(sidebar_text())
    refresh_quarto_yml()
    shutil.rmtree(proc, ignore_errors=True)
    write_reference(proc / "reference")
    names = NbdevLookup().syms  # kept by nbdev for every page
    # a word such as `dataset` means no command: those are in the reference, by `fsdl NAME`
    for name in [one for one, place in names.items() if COMMANDS in str(place)]:
        del names[name]
    tasks, hidden = {}, ("_proc", "_docs", "_site")
    with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
        for source in [*nbglob(folder, func=Path, file_glob="", file_re=""), folder / "_quarto.yml"]:
            name = source.relative_to(folder)
            if any(part[0] == "." or part in hidden for part in name.parts) or not source.is_file():
                continue
            if source.suffix == ".ipynb":
                tasks[name] = pool.submit(process_notebook, source, proc / name)
            else:
                (proc / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, proc / name)
        failures = {name: failure for name, task in tasks.items() if (failure := task.result())}
    for name, failure in sorted(failures.items()):
        print(f"docs: nbs/{name.as_posix()} was not executed: {failure}", file=sys.stderr)
        print("  fix: the build executes imports; they may need nothing from other cells", file=sys.stderr)
    return proc


def stale_numbers() -> bool:
    """Print the numbers in the text of the notebooks that are not what their runs say; True where there is one."""
    from fsdl_dev.share.numbers import check_numbers

    paths = [path for path in sorted(NOTEBOOKS.rglob("*.ipynb")) if not {"_", "."} & {path.name[0]}]
    checks = [check for path in paths for check in check_numbers(path, path.relative_to(ROOT).as_posix())]
    failed = [check for check in checks if check.failed]
    for check in failed:
        print(f"docs: {check.text()}", file=sys.stderr)
    return bool(failed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sidebar-only", action="store_true", help="write nbs/sidebar.yml and stop")
    parser.add_argument(
        "--substitute", action="store_true", help="render without Quarto even where it is installed"
    )
    parser.add_argument("--no-walk", action="store_true", help="build only; python tools/walk.py walks")
    options = parser.parse_args()
    began = time.monotonic()
    os.chdir(ROOT)
    if options.sidebar_only:
        (NOTEBOOKS / "sidebar.yml").write_text(sidebar_text())
        return 0
    site = ROOT / "_docs"
    if stale_numbers():
        return 1
    print("docs: preprocessing the notebooks ...", flush=True)
    os.environ["IN_TEST"] = "1"
    proc = preprocess()
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
    for schema in (proc / "reference").glob("*.schema.json"):  # no renderer takes them along by itself
        shutil.copy(schema, site / "reference")
    name_version(site, *this_version())
    (site / "llms.txt").write_text(llms_text(NOTEBOOKS, guide_sections()), encoding="utf-8")
    print(f"docs: built in {time.monotonic() - began:.0f} s, open {site / 'index.html'}", flush=True)
    return 0 if options.no_walk else report_walk(site, proc)


if __name__ == "__main__":
    sys.exit(main())
