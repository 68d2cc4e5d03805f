"""Run public notebooks from top to bottom and check each: `play.py PYTHON WORK FOLDER LIST.json RESULTS.jsonl`.

PYTHON is the interpreter of an environment with fsdl_dev, nbdev and ipykernel; WORK a scratch folder; FOLDER and LIST
as in make_list.py. RESULTS grows by a line for each notebook, and those that it has are not played again.

`honest`: the check passed; `refused`: what was said stands below; `broken`: an exported cell failed, so a refusal is
right; `crash`: the check raised another exception; `unplayed`: it could not be run here. `through`: every cell ran
without an error. A plain notebook becomes an nbdev one by a rule: imports, definitions and literal constants are
exported. A refusal of a notebook that ran from top to bottom is argued by a person: either the job would get something
else, or agreement has a defect. What the fixes say is done up to `--rounds` times: `rounds` has the refusals that were
left each time, so a last one that is not empty is a fix without effect, or one that a program cannot do.
"""

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from make_list import clone_of, git
from notebook import Cell, Played

KEPT = set(
    ".ipynb .py .ini .jsonl .js .html .sql .ftr .toml .txt .csv .json .md .yml .css .cfg .in"
    " .npy .npz .pt .pkl .gz .parquet .png .jpg .jpeg .gif".split()
)
LARGEST = 6_000_000  # bytes of a file that is taken along
NOT_PLAYED = re.compile(
    r"^\s*[!%]?\s*(pip|conda)\b|git clone|\bwget\b|nbdev_export\(\)|nbdev\.nbdev_export", re.M
)


def extract(repo: Path, to: Path) -> Path:
    """The files of HEAD that a notebook may need; large ones may be absent from a mirror."""
    if to.exists():
        return to
    for line in git(repo, "ls-tree", "-r", "-l", "-z", "HEAD").split("\0"):
        about, _, path = line.partition("\t")
        mode, kind, sha, size = about.split() if path else ("", "", "", "")
        small = size.isdigit() and int(size) < LARGEST
        if kind != "blob" or mode == "120000" or not small or Path(path).suffix not in KEPT:
            continue
        blob = subprocess.run(["git", "-C", str(repo), "cat-file", "blob", sha], capture_output=True)
        if blob.returncode == 0:
            (to / path).parent.mkdir(parents=True, exist_ok=True)
            (to / path).write_bytes(blob.stdout)
    return to


def is_definition(node: ast.stmt) -> bool:
    """Whether a plain notebook's statement would be exported: an import, a definition, a literal constant."""
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return True
    if not isinstance(node, ast.Assign) or not all(isinstance(target, ast.Name) for target in node.targets):
        return False
    try:
        ast.literal_eval(node.value)
    except (ValueError, TypeError, SyntaxError):
        return False
    return True


def split(source: str) -> list[tuple[bool, str]]:
    """A plain cell in stretches that are exported or not."""
    try:
        body = ast.parse(re.sub(r"^[%!].*$", "0", source, flags=re.M)).body  # a magic is not exported
    except (SyntaxError, ValueError):
        return [(False, source)]
    lines, parts, start = source.split("\n"), [], 0
    for node, following in zip(body, [*body[1:], None]):
        end = len(lines) if following is None else node.end_lineno or node.lineno
        if following is not None and following.lineno <= end:  # two statements on one line
            return [(all(map(is_definition, body)), source)]
        kind, text = is_definition(node), "\n".join(lines[start:end])
        if parts and parts[-1][0] == kind:
            parts[-1] = kind, f"{parts[-1][1]}\n{text}"
        else:
            parts.append((kind, text))
        start = end
    return parts or [(False, source)]


def read_cells(path: Path) -> list[Cell]:
    """The cells of a file, with an id each."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [Cell(c.get("id") or f"p{n}", c["cell_type"], "".join(c["source"])) for n, c in enumerate(cells)]


def open_nbdev(source: Path, row: dict, work: Path, python: str, code: str) -> Played:
    """A notebook of an nbdev project, in a copy of it."""
    project = work / "project"
    shutil.rmtree(project, ignore_errors=True)
    shutil.copytree(source, project)
    played = Played(project / row["path"], python, code, project, read_cells(project / row["path"]))
    first = next(n for n, cell in enumerate(played.cells) if cell.kind == "code")
    played.cells.insert(first + 1, Cell("extension", "code", "%load_ext fsdl_dev"))
    return played


@cache
def template(work: Path, python: str, code: str) -> Path:
    """A new project, made once."""
    project = work / "template"
    shutil.rmtree(project, ignore_errors=True)
    begin = "import sys; from fsdl_dev.cli.main import main; sys.exit(main())"
    command = [python, "-c", begin, "init", str(project), "--name", "plainly"]
    subprocess.run(command, check=True, capture_output=True, env=os.environ | {"PYTHONPATH": code})
    for made in project.glob("nbs/*.ipynb"):
        made.unlink()
    return project


def open_plain(source: Path, row: dict, work: Path, python: str, code: str) -> Played:
    """A plain notebook in a project of its own, with the data that lie beside it."""
    project = work / "plain"
    shutil.rmtree(project, ignore_errors=True)
    shutil.copytree(template(work, python, code), project)
    for file in (source / row["path"]).parent.iterdir():
        if file.is_file() and file.suffix in KEPT - {".ipynb", ".ini", ".toml"}:
            shutil.copy(file, project / "nbs")
    played = Played(project / "nbs/00_plain.ipynb", python, code, project)
    played.cells = [
        Cell("exp", "code", "#| default_exp plain"),
        Cell("extension", "code", "%load_ext fsdl_dev"),
    ]
    for cell in read_cells(source / row["path"]):
        parts = split(cell.source) if cell.kind == "code" else [(False, cell.source)]
        for number, (exported, text) in enumerate(parts):
            text = f"#| export\n{text}" if exported else text
            played.cells.append(Cell(f"{cell.id}-{number}", cell.kind, text))
    return played


@dataclass
class Play:
    """What came of a notebook from top to bottom."""

    failed: list[Cell] = field(default_factory=list)
    left_out: list[Cell] = field(default_factory=list)  # asleep, or too late


def play(played: Played, each: float, total: float) -> Play:
    """Run the cells from top to bottom."""
    began, found = time.monotonic(), Play()
    for cell in played.cells:
        late = time.monotonic() - began > total
        asleep = re.search(r"#\s*\|\s*eval:\s*false", cell.source) or NOT_PLAYED.search(cell.source)
        if cell.kind != "code" or not cell.exported and asleep:
            continue
        if not cell.exported and late:
            found.left_out.append(cell)
        elif played.run(cell.source, cell.id, 60 if cell.exported else each).error:
            found.failed.append(cell)
    return found


ASK = """
from fsdl_dev.agreement.agreement import prepare_launch as _prepare
import json as _json
_found = _prepare(get_ipython(), "")
_checks = [check.to_dict() for check in _found.checks]
print("\\nANSWER" + _json.dumps({"checks": _checks, "rules": getattr(_found, "rules", {})}))
"""


def check(played: Played) -> tuple[dict, float, str]:  # text: what was raised instead of an answer
    """The checks of a launch with the rules that had an answer, and how long they took."""
    began = time.monotonic()
    ran = played.run(ASK, "check", 240)
    seconds = round(time.monotonic() - began, 1)
    if "ANSWER" not in ran.text:
        return {"checks": [], "rules": {}}, seconds, f"{ran.error}: {ran.text[-2000:]}"
    return json.loads(ran.text.rpartition("ANSWER")[2].splitlines()[0]), seconds, ""


def refusals(checks: list[dict]) -> list[dict]:
    """The failed checks, in short."""
    return [{k: c[k] for k in ("name", "message", "where", "fix")} for c in checks if c["verdict"] == "fail"]


def obey(played: Played, refused: list[dict]) -> bool:  # False: a fix says nothing that can be done here
    """Do the first way of each fix, as a person would: export cells, run cells again."""
    codes, to_run = [cell for cell in played.cells if cell.kind == "code"], []
    for fix in dict.fromkeys(refusal["fix"] for refusal in refused):
        way = re.split(r"; |, or ", fix)[0]
        named = [codes[int(number) - 1] for number in re.findall(r"cell (\d+)", way)]
        if way.startswith("add `#| export`"):
            for cell in named:
                cell.source = f"#| export\n{cell.source}"
        elif way.startswith("run the exported cells"):
            named = [cell for cell in codes if cell.exported]
        elif not way.startswith("run cell"):
            continue
        to_run += [cell for cell in named if cell not in to_run]
    played.save()
    for cell in sorted(to_run, key=played.cells.index):
        played.run(cell.source, cell.id, 60)
    return bool(to_run)


def judge(row: dict, arguments: argparse.Namespace) -> dict:
    """Play one notebook, save it, check it, and do what refusals say until there are none."""
    work = Path(arguments.work).absolute()
    work.mkdir(parents=True, exist_ok=True)
    source = extract(clone_of(Path(arguments.folder), row["repo"]), work / f"files-{row['repo']}")
    opened = (open_nbdev if row["kind"] == "nbdev" else open_plain)(
        source, row, work, arguments.python, arguments.code
    )
    try:
        opened.save()
        played = play(opened, arguments.cell, arguments.total)
        opened.save()
        answer, seconds, raised = check(opened)
        checks = answer["checks"]
        refused, rounds, again = refusals(checks), [], None
        if refused:
            _, again, _ = check(opened)
        left = refused
        while left and len(rounds) < arguments.rounds and obey(opened, left):
            left = refusals(check(opened)[0]["checks"])
            rounds.append([f"{refusal['message']} | {refusal['fix']}" for refusal in left])
    finally:
        opened.stop()
    exported_failed = [cell.id for cell in played.failed if cell.exported]
    verdict = "refused" if refused else "honest"
    if raised:
        verdict = "crash"
    elif refused and exported_failed:
        verdict = "broken"
    return row | {
        "verdict": verdict,
        "through": not played.failed and not played.left_out,
        "exported": sum(cell.exported for cell in opened.cells),
        "seconds": seconds,
        "again": again,  # seconds of the same check a second time
        "failed": len(played.failed),
        "left_out": len(played.left_out),
        "exported_failed": exported_failed,
        "refusals": refused,
        "rules": answer["rules"],  # each name that differs -> the rule that says what it means
        "rounds": rounds,  # what was left after what the fixes said was done
        "warnings": [f"{c['message']} | {c['fix']}" for c in checks if c["verdict"] == "warn"],
        "text": raised,
    }


def main() -> None:
    """Play the list."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("python", "work", "folder", "list", "results"):
        parser.add_argument(name)
    parser.add_argument(
        "--code", default="", help="a checkout of fsdl_dev to use instead of the installed one"
    )
    parser.add_argument("--only", default="", help="play those whose repository and path have this text")
    parser.add_argument("--cell", type=float, default=10, help="seconds that a cell may take")
    parser.add_argument("--rounds", type=int, default=3, help="how often to do what the refusals say")
    parser.add_argument("--total", type=float, default=60, help="seconds after which only exported cells run")
    arguments = parser.parse_args()
    arguments.python = os.path.abspath(arguments.python)  # kernels start in the notebooks' folders
    results = Path(arguments.results)
    lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
    there = {(row["repo"], row["path"]) for row in map(json.loads, lines)}
    for row in json.loads(Path(arguments.list).read_text(encoding="utf-8")):
        name = f"{row['repo']}:{row['path']}"
        if arguments.only not in name or (row["repo"], row["path"]) in there:
            continue
        try:
            result = judge(row, arguments)
        except Exception as error:  # one notebook that cannot be played ends nothing
            result = row | {"verdict": "unplayed", "text": f"{type(error).__name__}: {error}"}
        with results.open("a", encoding="utf-8") as out:
            out.write(json.dumps(result, ensure_ascii=False) + "\n")
        print(f"{result['verdict']:9}{result.get('seconds', 0):6.1f} s  {name}", flush=True)
        said = [f"{c['message']} | {c['fix']}" for c in result.get("refusals", ())]
        for text in [*said, *result.get("warnings", ()), result["text"][-400:]]:
            print("    " + text.replace("\n", "\n    ") if text else "", end="\n" if text else "", flush=True)


if __name__ == "__main__":
    main()
