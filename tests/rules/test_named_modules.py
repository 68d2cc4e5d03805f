"""A module that is named in a string obeys the order of the house, as an import does."""

import ast
import re
import tomllib

from repository import PACKAGE, ROOT, report

from fsdl_dev.core.protocol import Module

NAMED = re.compile(rf"({PACKAGE}(?:\.[a-z_]\w*)+)(?::\w+)?")
NAMES_ALL = "core/protocol.py"  # defines the names: who uses one is looked at


def folders() -> list[str]:
    """The folders of the house, the lowest first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["id"] == "house")
    return layers[::-1]


def named_modules(tree: ast.AST) -> set[str]:
    """The modules of the package that a file names: as Module.NAME, or as a text that is nothing but such a name."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Module":
            found.add(getattr(Module, node.attr, ""))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            match = NAMED.fullmatch(node.value)
            found.add(match[1] if match else "")
    return {name for name in found if name and _exists(name)}


def _exists(name: str) -> bool:
    place = ROOT / name.replace(".", "/")
    return place.with_suffix(".py").is_file() or place.is_dir()


def upward(files: dict[str, ast.AST]) -> list[tuple[str, str]]:
    """(file, module) of each name that points to a folder above the file's own."""
    order, wrong = folders(), []
    for path, tree in sorted(files.items()):
        own = path.partition("/")[0].removesuffix(".py")
        for name in sorted(named_modules(tree)):
            there = name.split(".")[1]
            if own in order and there in order and order.index(there) > order.index(own):
                wrong.append((path, name))
    return wrong


def test_no_module_is_named_upward():
    files = {
        path.relative_to(ROOT / PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in (ROOT / PACKAGE).rglob("*.py")
        if path.name != "_modidx.py"
    }
    del files[NAMES_ALL]
    wrong = [f"{path} names {name}, which is above it" for path, name in upward(files)]
    fix = "move what is needed down, or let the upper module hand itself in"
    assert not wrong, report(
        wrong, "a module that is named in a string is not above the one that names it", fix
    )


def test_every_name_is_a_module():
    missing = [name for key, name in vars(Module).items() if key.isupper() and not _exists(name)]
    assert not missing, missing


def test_a_name_upward_is_found():
    text = "import_module(Module.SWEEP); x = 'fsdl_dev.cli.main:main'; 'fsdl_dev.runs of a project'"
    assert upward({"worker/a.py": ast.parse(text)}) == [
        ("worker/a.py", "fsdl_dev.cli.main"),
        ("worker/a.py", "fsdl_dev.sweep.controller"),
    ]
    assert upward({"notebook/a.py": ast.parse(text)}) == []
