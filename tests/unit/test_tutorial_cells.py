"""A tutorial can be typed: what its visible cells use is bound by a visible cell before or by Python itself."""

import ast
import builtins
import re

import pytest
from repository import notebooks

TUTORIALS = [one for one in notebooks() if "tutorials" in one.path.parts]
BY_IPYTHON = {"get_ipython", "display"}


def python_of(source: str) -> tuple[str, set[str]]:
    "A cell without what IPython alone reads, and the names that its shell lines take from the notebook."
    lines, taken = [], set[str]()
    if source.startswith(("%%writefile", "%%bash", "%%sh")):  # the cell is no Python
        return "", set()
    for line in source.splitlines():
        if re.match(r"\s*[!%]", line):
            kept = re.match(
                r"%%fsdl_launch.*--as (\w+)|%load_ext (\w+)", line
            )  # the extension gives its package
            lines.append(f"{kept[1] or kept[2]} = None" if kept else re.sub(r"\S.*", "pass", line))
            taken |= set(re.findall(r"(?<!\$)\{([A-Za-z_]\w*)", line))
        else:
            lines.append(line)
    return "\n".join(lines), taken


def bound_in(tree: ast.AST) -> set[str]:
    "The names that a cell gives."
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.ExceptHandler):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(one.asname or one.name).partition(".")[0] for one in node.names}
        elif isinstance(node, ast.arg):
            names.add(node.arg)
    return names


@pytest.mark.parametrize("notebook", TUTORIALS, ids=lambda one: one.path.stem)
def test_visible_cells_use_what_visible_cells_give(notebook):
    bound = {*dir(builtins), *BY_IPYTHON}
    for cell in notebook.cells:
        if cell.kind != "code" or "hide" in cell.directives:
            continue
        text, taken = python_of(cell.source)
        tree = ast.parse(text)
        bound |= bound_in(tree)
        used = taken | {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert not used - bound, f"{notebook.path.name}: {sorted(used - bound)} in: {cell.source[:200]}"
