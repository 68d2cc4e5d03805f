"""The rules of the repository (DESIGN: layout, budgets, layers), each with what to do about a violation."""

import ast
import configparser
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from repository import PACKAGE, ROOT, Notebook, imported_modules, notebooks, report, tracked_files

from fsdl_dev.environments.locks import read_lock_file

NOTEBOOKS = notebooks()
EXPORTING = [notebook for notebook in NOTEBOOKS if notebook.module]
HEAVY = [
    "torch",
    "torchvision",
    "timm",
    "pandas",
    "matplotlib",
    "pytorch_lightning",
    "transformers",
    "wandb",
    "sklearn",
    "s3fs",
    "kubernetes",
    "ray",
    "sky",
]


def in_copy(copy: Path, *command: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(copy), "JUPYTER_DATA_DIR": str(copy.parent / "jupyter")}
    program = [sys.executable, "-c", f"from {command[0]} import {command[1]} as run; run.__wrapped__()"]
    result = subprocess.run(program, cwd=copy, env=environment, text=True, capture_output=True)
    assert result.returncode == 0, result.stdout + result.stderr


def differing(copy: Path, pattern: str) -> list[str]:
    """Files of the copy that differ from, or do not exist in, the working tree."""
    result = []
    for path in sorted(copy.rglob(pattern)):
        original = ROOT / path.relative_to(copy)
        built = {"__pycache__", "_proc", "_docs"} & set(path.parts)
        if built or (original.exists() and original.read_bytes() == path.read_bytes()):
            continue
        result.append(path.relative_to(copy).as_posix())
    return result


def test_notebooks_are_clean(working_copy):
    in_copy(working_copy, "nbdev.clean", "nbdev_clean")
    dirty = differing(working_copy, "*.ipynb")
    assert not dirty, report(dirty, "notebooks must be clean", "make prepare")


def test_export_leaves_no_difference(working_copy):
    in_copy(working_copy, "nbdev.doclinks", "nbdev_export")
    stale = differing(working_copy, "*.py")
    assert not stale, report(stale, "the package must be what the notebooks export", "make prepare")


def test_update_leaves_no_difference(working_copy):
    """`nbdev_update` would write `from fsdl_dev import name` of a folder's module as an import of the folder."""
    in_copy(working_copy, "nbdev.sync", "nbdev_update")
    changed = differing(working_copy, "*.ipynb")
    fix = "in exported cells, import names from the module that defines them"
    assert not changed, report(changed, "nbdev_update must leave an unchanged notebook as it is", fix)


def test_no_orphan_modules():
    expected = {f"{notebook.module.replace('.', '/')}.py" for notebook in EXPORTING}
    orphans = []
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        name = path.relative_to(ROOT / PACKAGE).as_posix()
        if name == "_modidx.py" or (
            path.name == "__init__.py" and (name == "__init__.py" or not path.read_text().strip())
        ):
            continue
        if name not in expected:
            orphans.append(f"{PACKAGE}/{name} is exported by no notebook")
    modules = [notebook.module for notebook in EXPORTING]
    orphans += [
        f"{module} is exported by two notebooks"
        for module in sorted(set(modules))
        if modules.count(module) > 1
    ]
    assert not orphans, report(
        orphans, "one notebook makes one module", "delete the module, or export it from a notebook"
    )


def test_names_and_numbers():
    wrong, seen = [], {}
    for notebook in NOTEBOOKS:
        folder = notebook.name.rpartition("/")[0]
        if not folder:
            continue  # index.ipynb and api.ipynb stand at the top
        if notebook.number is None or re.search(r"(^|/)\d", folder):
            wrong.append(f"{notebook.name}: the file has a number, its folder has none")
        twin = seen.setdefault((folder, notebook.number), notebook.name)
        if twin != notebook.name:
            wrong.append(f"{notebook.name}: {twin} has the same number")
        if notebook.module and notebook.module.rpartition(".")[0] != folder.replace("/", "."):
            wrong.append(f"{notebook.name}: exports {notebook.module}, outside its folder")
    fix = "rename the notebook"
    assert not wrong, report(wrong, "notebooks are named NN_name.ipynb, with a number of their own", fix)


def test_folders_stay_small():
    wrong = []
    for folder in sorted({path.parent for path in (ROOT / PACKAGE).rglob("*.py")}):
        modules = [p for p in folder.glob("*.py") if p.name not in ("__init__.py", "_modidx.py")]
        # core/ has the events and, while issue 22 moves folds into it, more than it will keep
        if len(modules) > (16 if folder.name == "core" else 14):
            wrong.append(f"{folder.relative_to(ROOT)}: {len(modules)} modules")
    assert not wrong, report(
        wrong, "a folder has at most 14 modules, core 16", "merge modules, or give a part its own folder"
    )


def size_violations(notebook: Notebook) -> list[str]:
    wrong = []
    code = [cell for cell in notebook.cells if cell.kind == "code"]
    if len(notebook.cells) > 60:
        wrong.append(f"{notebook.name}: {len(notebook.cells)} cells, at most 60")
    size = notebook.path.stat().st_size
    if size > 120_000:
        wrong.append(f"{notebook.name}: {size / 1000:.0f} KB, at most 120 KB with outputs")
    if notebook.module:
        lines = len((ROOT / PACKAGE / f"{notebook.module.replace('.', '/')}.py").read_text().splitlines())
        if lines > 600:
            wrong.append(f"{notebook.name}: its module has {lines} lines, at most 600")
        always = [cell for cell in code if not {"slow", "cuda", "net"} & set(cell.directives)]
        tested = any(
            isinstance(node, ast.Assert)
            for cell in always
            if not cell.exported
            for node in ast.walk(cell.tree)
        )
        if not tested:
            wrong.append(f"{notebook.name}: exports a module and asserts nothing")
    return wrong


def test_sizes():
    wrong = [line for notebook in NOTEBOOKS for line in size_violations(notebook)]
    fix = "split the notebook by subject, or add the assertion"
    assert not wrong, report(wrong, "notebooks and modules stay readable", fix)


def test_notebooks_start_with_a_title():
    untitled = [n.name for n in NOTEBOOKS if not re.match(r"# \S.*\n+> \S", n.cells[0].source)]
    assert not untitled, report(
        untitled,
        "a notebook starts with a title and its summary",
        "make the first cell `# Title` and `> one line`",
    )


def test_links_between_notebooks():
    """They name the notebook's file, which works in JupyterLab, on a code host and in the docs alike."""
    wrong = [
        f"{notebook.where(cell)}: {link}"
        for notebook in NOTEBOOKS
        for cell in notebook.cells
        if cell.kind == "markdown"
        for link in re.findall(r"\]\(([^)#\s:]+\.(?:ipynb|html))(?:#[^)\s]*)?\)", cell.source)
        if not (notebook.path.parent / link).exists()
    ]
    assert not wrong, report(wrong, "a link names a notebook that exists", "correct the path of the notebook")


def test_directives():
    allowed = re.compile(
        r"(default_exp [a-z_.]+|exports?|hide|eval: ?false|code-fold: ?true|slow|cuda|net|exec_doc|sealed)$"
    )
    wrong = [
        f"{notebook.where(cell)}: #| {directive}"
        for notebook in NOTEBOOKS
        for cell in notebook.cells
        for directive in cell.directives
        if not allowed.match(directive)
    ]
    assert not wrong, report(
        wrong,
        "few directives are in use",
        "keep to default_exp, export(s), hide, eval: false, slow, cuda, net, exec_doc (a page that the build computes)",
    )


def test_import_cells_only_import():
    """The docs build executes every cell that imports something: it must not need what other cells define."""
    imports = (ast.Import, ast.ImportFrom)
    wrong = [
        notebook.where(cell)
        for notebook in EXPORTING
        for cell in notebook.cells
        if cell.kind == "code"
        and not cell.exported
        and not any(d.startswith("eval") for d in cell.directives)
        if any(isinstance(node, imports) for node in ast.walk(cell.tree))
        if not all(isinstance(node, imports) for node in cell.tree.body)
    ]
    assert not wrong, report(
        wrong, "a cell that imports holds imports and nothing else", "move the imports to a cell of their own"
    )


def exported_imports(notebook: Notebook) -> list[tuple[str, str, list[str]]]:
    """(where, module, names) of each import in the exported cells."""
    return [
        (notebook.where(cell), module, names)
        for cell in notebook.cells
        if cell.exported
        for module, names in imported_modules(cell.tree, notebook.module)
    ]


def test_layers():
    """The folders in order, the two halves, and no circle of files: the contracts are in pyproject.toml."""
    result = subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command as run; run()",
            "--no-cache",
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        capture_output=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def class_lines() -> dict[str, tuple[str, ...]]:
    """Each class of the package -> the classes of the package that it inherits from, itself first."""
    bases: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        tree, names = ast.parse(path.read_text(encoding="utf-8")), {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                parent = module.split(".")[: -node.level] if node.level else []
                source = ".".join([*parent, *([node.module] if node.module else [])])
                names |= {alias.asname or alias.name: (source, alias.name) for alias in node.names}
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                inherited = [base.id for base in node.bases if isinstance(base, ast.Name)]
                bases[module, node.name] = [names.get(name, (module, name)) for name in inherited]

    def line(cls: tuple[str, str]) -> tuple[str, ...]:
        lines = [line(base) for base in bases[cls] if base in bases and base != cls]
        return (cls[1], *max(lines, key=len, default=()))

    return {f"{module}.{name}": line((module, name)) for module, name in bases}


def test_inheritance_is_at_most_three_deep():
    """An object has its parts; it does not inherit them one by one."""
    deep = []
    for name, line in class_lines().items():
        if len(line) > 3:
            deep.append(f"{name}: {' < '.join(line)}")
    assert not deep, report(
        deep, "more than three classes deep", "let the class have an object in the place of a base class"
    )


def test_targets_are_not_probed():
    """The target and the engine declare every verb with a default (engines/target, engines/remote/engine)."""
    probe = re.compile(r"\b(?:hasattr|getattr)\((?:\w+\.)*(?:target|engine)\b")
    found = []
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if probe.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert not found, report(found, "a verb is probed", "call the verb: it has a default")


def test_exported_code_is_plain():
    wrong = []
    for notebook in EXPORTING:
        for where, module, names in exported_imports(notebook):
            if "*" in names:
                wrong.append(f"{where}: from {module} import *")
            if module.split(".")[0] in ("fastcore", "execnb"):
                wrong.append(f"{where}: imports {module}, a development dependency")
        for cell in notebook.cells:  # the user's own nbdev may be used, inside the function that needs it
            if cell.exported and re.search(r"^(from|import) nbdev\b", cell.source, re.M):
                wrong.append(
                    f"{notebook.where(cell)}: imports nbdev at module level, a development dependency"
                )
    for path in tracked_files():
        if path.suffix == ".py" and re.search(r"^\s*from \S+ import \*", path.read_text(), re.M):
            wrong.append(f"{path.relative_to(ROOT)}: import *")
    assert not wrong, report(
        wrong,
        "imports are explicit, and fastcore stays out of run time",
        "name what is used; use the standard library",
    )


def strings(tree: ast.AST) -> list[tuple[str, bool]]:
    """The texts in a cell but for docstrings, and whether each is shown to the user: part of an error or a log line."""
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("FsdlError", "rank_zero_info")
    ]
    shown = {id(node) for call in calls for node in ast.walk(call)}
    return [
        (node.value, id(node) in shown)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation
    ]


def test_names_between_programs_are_in_the_protocol():
    """A module's path or an environment variable in a string is found by no refactoring tool."""
    from fsdl_dev.core.protocol import Env, Module

    modules = {value for key, value in vars(Module).items() if key.isupper()}
    variables = {value for key, value in vars(Env).items() if key.isupper()}
    wrong = [
        f"core.protocol: there is no module {name}"
        for name in sorted(modules)
        if importlib.util.find_spec(name) is None
    ]
    source = "\n".join(
        path.read_text()
        for path in sorted((ROOT / PACKAGE).rglob("*.*"))
        if path.suffix in (".py", ".sh") and path.name not in ("protocol.py", "_modidx.py")
    )
    used = set(re.findall(r"(?<![A-Z_])FSDL_[A-Z0-9_]*[A-Z0-9](?!\w)", source))
    wrong += [f"{name} is no variable of core.protocol.Env" for name in sorted(used - variables)]
    short = {name: key for part in (Env, Module) for key, name in vars(part).items() if key.isupper()}
    wrong += [
        f"core.protocol: nothing uses {name}"
        for name, key in short.items()
        if f".{key}" not in source and name not in used
    ]
    folders = "|".join(sorted({notebook.module.split(".")[0] for notebook in EXPORTING}))
    path = re.compile(
        rf"{PACKAGE}[./\\\[\]]+(?:{folders})[./\\\[\]]+[\w(]|(?<![\w./])(?:{folders})/[\w/]+\.py"
    )
    known = {f"{PACKAGE}.{notebook.module}" for notebook in EXPORTING}
    for notebook in EXPORTING:
        for cell in notebook.cells:
            for text, shown in (
                strings(cell.tree) if cell.exported and notebook.module != "core.protocol" else ()
            ):
                named = set(re.findall(rf"{PACKAGE}\.(?:{folders})(?:\.\w+)+", text)) if shown else set()
                if text in variables or (path.search(text) and not shown) or named - known:
                    wrong.append(f"{notebook.where(cell)}: {text[:80]!r}")
    assert not wrong, report(
        wrong,
        "what programs call each other by stands in core.protocol, once",
        "name it there, and use the constant",
    )


ARCHITECTURE = "nbs/explanation/00_architecture.ipynb"


def test_architecture_page_names_what_exists():
    page = "\n".join(cell["source"] for cell in nbformat.read(ROOT / ARCHITECTURE, 4).cells)
    layers = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0][
        "layers"
    ]
    table = re.findall(r"^\| `(\w+)/?` \|", page.split("## The folders")[1].split("\n## ")[0], re.M)
    assert table == layers, report(
        sorted(set(table) ^ set(layers)) or table,
        "the table of folders has import-linter's list, in its order",
        f"correct {ARCHITECTURE} or pyproject.toml",
    )
    named = {
        name.replace("/", ".").strip(".")
        for name in re.findall(r"`([a-z_]+(?:[./][a-z_]+)*/?)`", page)
        if re.split("[./]", name)[0] in layers
    }
    modules = {notebook.module for notebook in EXPORTING}
    folders = {name.rpartition(".")[0] for name in modules} | {name.partition(".")[0] for name in modules}
    missing = sorted(named - modules - folders - set(layers))
    assert not missing, report(missing, "each module that the page names exists", f"correct {ARCHITECTURE}")


def test_settings_agree():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "settings.ini")
    settings, project = parser["DEFAULT"], tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = re.search(r'^__version__ = "(.+)"$', (ROOT / PACKAGE / "__init__.py").read_text(), re.M)[1]
    pairs = {
        "version": (settings["version"], version),
        "name": (settings["lib_name"].replace("_", "-"), project["name"]),
        "description": (settings["description"], project["description"]),
        "min_python": (">=" + settings["min_python"], project["requires-python"]),
        "license": (settings["license"], project["license"].replace("Apache-2.0", "apache2")),
        "keywords": (settings["keywords"].split(), project["keywords"]),
    }
    wrong = [f"{name}: {one!r} and {other!r}" for name, (one, other) in pairs.items() if one != other]
    assert not wrong, report(
        wrong, "settings.ini and pyproject.toml (version: __init__.py) say the same", "edit one of them"
    )


LOADED = "import sys; found = [n for n in {heavy!r} if n in sys.modules]; print(found); sys.exit(bool(found))"


@pytest.mark.parametrize("start", [
    "import fsdl_dev",
    "import fsdl_dev; fsdl_dev.log(loss=0.5)",
    "from IPython.core.interactiveshell import InteractiveShell;"
    " InteractiveShell.instance().run_line_magic('load_ext', 'fsdl_dev')",
], ids=["import", "log", "load_ext"])  # fmt: skip
def test_start_up_loads_nothing_heavy(start):
    late = [
        "fsdl_dev.api",
        "fsdl_dev.cli",
        "fsdl_dev.cards",
        "fsdl_dev.launcher.submit",
        "fsdl_dev.notebook.magics",
    ]
    heavy = HEAVY + (late if "IPython" in start else ["IPython", "ipywidgets"])
    code = start + "\n" + LOADED.format(heavy=heavy)
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True)
    assert result.returncode == 0, (
        f"{start} loads {result.stdout}{result.stderr}\nfix: import it inside the function that needs it"
    )


LIGHT = "core agreement snapshot checks worker engines launcher records cards cli notebook".split()


@pytest.mark.parametrize("folder", LIGHT)
def test_light_modules_import_nothing_heavy(folder):
    modules = [f"{PACKAGE}.{n.module}" for n in EXPORTING if n.module.startswith(folder + ".")]
    if not modules:
        pytest.skip(f"no notebook exports to {folder}/ yet")
    code = f"import {', '.join(modules)}\n" + LOADED.format(heavy=HEAVY + ["ipywidgets"])
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True)
    assert result.returncode == 0, (
        f"importing {folder}/ loads {result.stdout}{result.stderr}\nfix: import it inside the function that"
        " needs it"
    )


def test_public_names_exist():
    import fsdl_dev

    known = {f"{notebook.module}": notebook for notebook in EXPORTING}
    wrong = [
        f"{name}: {module} is exported by no notebook"
        for name, module in fsdl_dev._WHERE.items()
        if module not in known
    ]
    shown = re.findall(
        r"^    from fsdl_dev\.(\S+) import (.+)$",
        (ROOT / PACKAGE / "__init__.py").read_text().split("if TYPE_CHECKING:")[1],
        re.M,
    )
    typed = {name.strip(): module for module, names in shown for name in names.split(",")}
    wrong += [
        f"{name}: not the same place below TYPE_CHECKING"
        for name in fsdl_dev._WHERE
        if typed.get(name) != fsdl_dev._WHERE[name]
    ]
    wrong += [
        f"{name}: not defined in {m}"
        for name, m in fsdl_dev._WHERE.items()
        if m in known and not hasattr(fsdl_dev, name)
    ]
    assert not wrong, report(
        wrong, "every public name can be imported", f"fix _WHERE in {PACKAGE}/__init__.py"
    )


MACHINE = re.compile(r"(?<![\w.<{}*$-])/(?:" + "|".join(["work", "root", "home", "Users"]) + r")/[\w.]")
REGISTRY = re.compile(
    r"--(?:extra-)?index-url[ =](?!https://download\.pytorch\.org)|--find-links["
    r" =]|PIP_(?:EXTRA_)?INDEX_URL=|PIP_FIND_LINKS=|\bfile:///opt|/simple\b(?=[/\"'\s])"
)


def test_figures_of_the_bench_name_a_script_and_a_machine():
    bench = ROOT / "bench"
    for entry in json.loads((bench / "results.json").read_text(encoding="utf-8")):
        assert {"script", "stated", "date", "machine", "figures"} <= entry.keys(), entry
        assert (bench / entry["script"]).is_file(), f"{entry['script']} is gone: remove its figures"


@pytest.mark.tier("smoke")
def test_no_machine_paths_or_registry_addresses():
    wrong = []
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            for pattern in (MACHINE, REGISTRY):
                match = pattern.search(line)
                if match and path.name != Path(__file__).name:
                    start = max(0, match.start() - 30)
                    wrong.append(
                        f"{path.relative_to(ROOT)}:{number}: ...{line[start : match.end() + 40].strip()}"
                    )
    assert not wrong, report(
        wrong,
        "no paths of one machine and no package index in the repository",
        "use a relative or temporary path; clear the output",
    )


def read_pins(name):
    "The pinned packages of a file of requirements, and those of them that no digest stands behind."
    pins, bare = {}, []
    for block in re.split(r"\n(?=[a-zA-Z])", (ROOT / "requirements" / name).read_text()):
        if pin := re.match(r"([\w.-]+)==([^\s;]+)", block):
            pins[pin[1]] = pin[2]
            bare += [] if "--hash=sha256:" in block else [pin[1]]
        else:
            assert block.startswith("#"), f"{name}: not pinned: {block.splitlines()[0]}"
    return pins, bare


def test_lock_fits_every_machine():
    pins, bare = read_pins("dev.txt")
    builds, _ = read_pins("torch.txt")
    wrong = [f"{name}: no digest of its files" for name in bare]
    pins |= builds
    wrong += [
        f"{name}=={version}: a build of one kind of machine"
        for name, version in pins.items()
        if "+" in version
    ]
    wrong += [
        f"{name}: left to torch, which pins it where it is needed"
        for name in pins
        if re.match("nvidia-(?!ml-py)|triton|cuda-", name)
    ]
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"] + [
        "pip",
        "setuptools",
    ]
    names = {re.match(r"[\w.-]+", text)[0].lower().replace("_", "-") for text in needed}
    wrong += [f"{name}: not in the lock" for name in sorted(names - set(pins))]
    assert builds.keys() == {"torch", "torchvision"}
    assert not wrong, report(wrong, "the lock pins everything and fits every machine", "make lock")


def test_each_dependency_has_a_lower_bound():
    "Without one pip, held by the pins of others, goes years back and says nothing."
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {"dependencies": project["dependencies"], **project["optional-dependencies"]}
    wrong = []
    for group, texts in groups.items():
        for text in texts:
            operators = {one.operator for one in Requirement(text).specifier}
            if not operators & {">=", "==", "~=", ">"}:
                wrong.append(f"{group}: {text}")
    assert not wrong, report(
        wrong, "each package of an extra has a lower bound", "NAME>=VERSION in pyproject.toml"
    )


def test_locks_have_what_they_were_compiled_from():
    "Here and in each template; what each template makes is an environment.yml beside its locks."
    folders = [ROOT, *sorted(path.parent for path in (ROOT / "templates").glob("*/requirements"))]
    wrong = [] if (ROOT / "environment.yml").is_file() else ["environment.yml"]
    wrong += (
        []
        if (ROOT / "templates" / "common" / "environment.yml").is_file()
        else ["templates: environment.yml"]
    )
    for folder in folders:
        locks = [read_lock_file(path) for path in sorted((folder / "requirements").glob("*.txt"))]
        locked = {name for lock in locks for name in lock.versions}
        for source in (folder / "requirements").glob("*.in"):
            text = source.read_text().replace("THE_NBDEV", "nbdev")
            names = {
                canonicalize_name(re.match(r"[\w.-]+", line)[0])
                for line in text.splitlines()
                if re.match(r"\w", line)
            }
            wrong += [f"{source.relative_to(ROOT)}: {name}" for name in sorted(names - locked)]
    assert not wrong, report(wrong, "each lock has the packages of its .in file", "make lock")


def test_readme_and_sidebar_are_up_to_date():
    try:
        import docs
    finally:
        sys.path.remove(str(ROOT / "tools"))
    stale = []
    if (ROOT / "nbs" / "sidebar.yml").read_text() != docs.sidebar_text():
        stale.append("nbs/sidebar.yml does not list the notebooks there are")
    check = subprocess.run(
        [sys.executable, "tools/readme.py", "--check"], cwd=ROOT, text=True, capture_output=True
    )
    if check.returncode:
        stale.append(check.stderr.strip().splitlines()[-1])
    assert not stale, report(
        stale, "README.md comes from index.ipynb and the sidebar from the folders", "make prepare"
    )
