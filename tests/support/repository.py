"""Reading the repository's notebooks, for the tests that hold it to its rules."""

import ast
import json
import re
import subprocess
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUPPORT = Path(__file__).resolve().parent
PACKAGE = "fsdl_dev"
DIRECTIVE = re.compile(r"^#\|\s*(.+?)\s*$", re.M)


@dataclass
class Cell:
    kind: str
    source: str
    identifier: str

    @cached_property
    def directives(self) -> list[str]:
        return DIRECTIVE.findall(self.source) if self.kind == "code" else []

    @property
    def exported(self) -> bool:
        return any(directive.split()[0] in ("export", "exporti", "exports") for directive in self.directives)

    @property
    def code(self) -> str:
        """The cell's Python, without magics and shell lines."""
        return (
            re.sub(r"(?m)^(\s*)[%!].*$", r"\1pass", self.source) if not self.source.startswith("%%") else ""
        )

    @cached_property
    def tree(self) -> ast.Module:
        try:
            return ast.parse(self.code)
        except SyntaxError:
            return ast.Module([], [])


@dataclass
class Notebook:
    path: Path
    cells: list[Cell] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> "Notebook":
        document = json.loads(path.read_text(encoding="utf-8"))
        cells = [Cell(c["cell_type"], "".join(c["source"]), c.get("id", "?")) for c in document["cells"]]
        return cls(path, cells)

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT / "nbs").as_posix()

    @property
    def number(self) -> int | None:
        match = re.match(r"(\d\d)_", self.path.name)
        return int(match[1]) if match else None

    @cached_property
    def module(self) -> str | None:
        """The module that it exports, from `#| default_exp`: "core.events"."""
        for cell in self.cells:
            for directive in cell.directives:
                if directive.startswith("default_exp"):
                    return directive.split()[1]
        return None

    def where(self, cell: Cell) -> str:
        return f"{self.name}, cell {self.cells.index(cell) + 1} (id {cell.identifier})"


def notebooks() -> list[Notebook]:
    paths = (ROOT / "nbs").rglob("*.ipynb")
    kept = [p for p in paths if not any(part[0] in "._" for part in p.relative_to(ROOT).parts)]
    return [Notebook.read(path) for path in sorted(kept)]


def imported_modules(tree: ast.AST, module: str) -> list[tuple[str, list[str]]]:
    """Every module imported anywhere in the tree, relative ones resolved, with the names taken from it."""
    parents, found = f"{PACKAGE}.{module}".split(".")[:-1], []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, []) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = parents[: len(parents) - node.level + 1] if node.level else []
            found.append(
                (".".join(base + ([node.module] if node.module else [])), [a.name for a in node.names])
            )
    return found


def tracked_files() -> list[Path]:
    """Files that git follows or would follow, as they are in the working tree."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return [ROOT / name for name in sorted(set(listed)) if name and (ROOT / name).is_file()]


def report(violations: list[str], rule: str, fix: str) -> str:
    """The text of a failed rule: what it says, each violation on its line, and what to do."""
    return f"\n\n{rule}\n" + "".join(f"  - {line}\n" for line in violations) + f"fix: {fix}\n"
