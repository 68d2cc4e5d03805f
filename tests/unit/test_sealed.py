"""Sealed numbers: what an attack on them comes to, and that honest work is not disturbed.

Each attack is neutral (the sealed number and its seal are as without it) or it is named. The evaluation itself is a
real process each time; attacks that leave it alone share one.
"""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import sealed_project as made

from fsdl_dev.core.errors import FsdlError
from fsdl_dev.core.event_kinds import Sealed
from fsdl_dev.core.events import read_events
from fsdl_dev.records.run import Run
from fsdl_dev.share.promote import promote
from fsdl_dev.worker.sealed import clean_process, measure
from fsdl_dev.worker.sealed.program import find_program


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    "A project, and a run of it that was measured without any attack."
    place = tmp_path_factory.mktemp("honest")
    before, os.environ["FSDL_STATE"] = os.environ.get("FSDL_STATE"), str(place / "state")
    root = made.make_project(place / "project")
    yield root, made.sealed_run(root)
    os.environ.pop("FSDL_STATE")
    os.environ.update({"FSDL_STATE": before} if before else {})


@pytest.fixture
def copied(honest, tmp_path):
    "A run of the project that may be changed."
    root = tmp_path / "project"
    shutil.copytree(honest[0], root, symlinks=True)
    return root, type(honest[1])(root / honest[1].path.relative_to(honest[0]))


def values_of(run) -> dict[str, float]:
    return Run(run).view.sealed.values()


def seal_of(run) -> str:
    return Run(run).view.sealed.newest.seal


def problems_of(run) -> str:
    return Run(run).view.sealed.newest.problem or ""


def notes_of(run) -> str:
    return " ".join(event["text"] for event in read_events(run.events, "note"))


def refusal_of(root, run, **options) -> str:
    with pytest.raises(FsdlError) as refused:
        promote(Run(run), "digits", folder=root, **options)
    return str(refused.value)


def edit_lines(path, kind, **values):
    "Change fields of the events of a kind."
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines = [{**line, **values} if line["kind"] == kind else line for line in lines]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def edit_record(run, **values):
    path = run.path / measure.RECORD
    path.chmod(0o644)
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


# ---- without an attack


def test_the_number_is_a_column_of_its_own(honest):
    root, run = honest
    row = Run(run).view
    assert values_of(run) == {f"accuracy@{seal_of(run)}": pytest.approx(0.8)}
    assert row.metrics.latest["accuracy"].value == 0.8 and not problems_of(run)
    record = json.loads((run.path / measure.RECORD).read_text())
    assert [*record["data"]] == ["data/test.csv"] and [*record["packages"]] == ["torch"]


def test_the_worker_measures_what_it_has_trained(tmp_path, monkeypatch):
    "A launch from the first gate to the record: the training says 1.0, and the worker measures 0.8."
    import fsdl_dev

    monkeypatch.setenv("FSDL_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("IN_TEST", raising=False)
    root = made.make_project(tmp_path / "project")
    (root / "train.py").write_text(made.TRAIN_SCRIPT)
    monkeypatch.chdir(root)
    run = fsdl_dev.launch("train.py", wait=True, no_test=True)
    assert run.state == "succeeded", run.logs()
    assert run.facts.metrics["accuracy"] == 1.0
    assert list(run.facts.sealed.values()) == [pytest.approx(0.8)]
    assert [row.words for row in fsdl_dev.runs("sealed.accuracy > 0.7")] == [run.words]


def test_promotion_takes_the_sealed_number(copied):
    root, run = copied
    entry = promote(Run(run), "digits", folder=root, why="the first")
    assert entry.metric == f"accuracy@{seal_of(run)}" and entry.value == pytest.approx(0.8)
    assert entry.sealed["seal"] == seal_of(run) and not entry.sealed["recomputed"]


# ---- attacks on the process


SURROUNDINGS = {
    "sitecustomize": "import torch\ntorch.eq = lambda a, b: a * 0 + 1\n",
    "usercustomize": "import torch\ntorch.eq = lambda a, b: a * 0 + 1\n",
    "conftest": "import torch\ntorch.eq = lambda a, b: a * 0 + 1\n",
    "proj/patches": "import sys\nsys.modules['proj.digits'].evaluate = lambda model: {'accuracy': 1.0}\n",
}


def test_what_the_process_inherits_is_neutral(honest, tmp_path):
    """PYTHONPATH, sitecustomize, a patched evaluate, variables, seeds, a start-up file of Python, a preloaded library:
    the number and the seal are those of the honest run.
    """
    root = made.make_project(tmp_path / "project")
    for name, text in SURROUNDINGS.items():
        path = root / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (root / "proj" / "digits.py").write_text(
        (root / "proj" / "digits.py").read_text() + "\nimport proj.patches\n"
    )
    variables = {"PYTHONPATH": str(root), "PYTHONSTARTUP": str(root / "conftest.py"), "PYTHONHASHSEED": "7"}
    variables |= {
        "TEST_LIMIT": "1",
        "LD_PRELOAD": "",
        "PL_GLOBAL_SEED": "3",
        "PYTHONINSPECT": "",
        "TORCH_SEED": "5",
    }
    run = made.made_run(root, reported=1.0)
    made.end(run, root, {**os.environ, **variables})
    assert problems_of(run) == ""
    assert values_of(run) == values_of(honest[1])


def test_a_library_that_the_project_replaces_is_named(tmp_path):
    sources = made.cells(net=made.NET + "\n\ntorch.eq = lambda a, b: a * 0 + 1\n")
    root = made.make_project(tmp_path / "project", sources)
    run = made.sealed_run(root)
    assert "torch.eq was replaced" in problems_of(run)
    assert "torch.eq was replaced" in refusal_of(root, run)


def test_an_answer_that_is_no_measurement_is_named(tmp_path):
    evaluate = """def evaluate(model):
    return {"accuracy": 0.99, "f1": float("nan"), "a b": 1.0, "text": "good"}
"""
    root = made.make_project(tmp_path / "project", made.cells(evaluate=evaluate))
    run = made.sealed_run(root)
    for words in ("never ran the model", "f1 is nan", "'a b' cannot be the name", "'text' is no number"):
        assert words in problems_of(run)
    assert "never ran the model" in refusal_of(root, run)


class Evil:
    "What a pickle may call."

    def __reduce__(self):
        return (os.system, (f"touch {os.environ['EVIL_FILE']}",))


def test_a_checkpoint_that_calls_something_is_not_loaded(honest, tmp_path, monkeypatch):
    import torch

    root = made.make_project(tmp_path / "project")
    run = made.made_run(root)
    monkeypatch.setenv("EVIL_FILE", str(tmp_path / "called"))
    path = run.checkpoints / "best.ckpt"
    path.chmod(0o644)
    torch.save({"state_dict": {}, "pytorch-lightning_version": "2.6", "more": Evil()}, path)
    made.end(run, root)
    assert problems_of(run) and values_of(run) == {} and not (tmp_path / "called").exists()


# ---- attacks on the data


def test_another_test_set_is_another_name(honest, tmp_path):
    "A smaller test set, by a link to another folder."
    root = made.make_project(tmp_path / "project")
    shutil.move(root / "data", tmp_path / "easy")
    (tmp_path / "easy" / "test.csv").write_text("1,0,0\n0,1,1\n")
    (root / "data").symlink_to(tmp_path / "easy")
    (root / ".gitignore").write_text("data\n")
    run = made.sealed_run(root)
    assert seal_of(run) != seal_of(honest[1]) and not values_of(run).keys() & values_of(honest[1]).keys()


def test_the_training_folder_is_named(tmp_path):
    "A sealed cell that reads the training rows; a test file that is in the training folder has the same content."
    evaluate = made.EVALUATE.replace("test_rows()", "test_rows()\n    Path('data/train.csv').read_text()")
    root = made.make_project(tmp_path / "project", made.cells(evaluate=evaluate))
    run = made.made_run(root, train=str(root / "data" / "train.csv"))
    made.end(run, root)
    assert "1 of 2 files of the test are in the training: data/train.csv" in problems_of(run)
    assert "are in the training" in refusal_of(root, run)


def test_rows_of_the_test_in_a_table_of_the_training_are_counted(tmp_path):
    "A training file with the test's rows in it is named; a few equal rows, as any data has, are a number."
    rows = [f"{number},{number % 3},{int(number % 3 > number)}" for number in range(1, 31)]
    for shared, named in ((2, False), (20, True)):
        root = made.make_project(tmp_path / f"shared{shared}")
        (root / "data" / "test.csv").write_text("\n".join(["0.5,0,0", *rows]))
        (root / "data" / "train.csv").write_text("\n".join(["0.25,0,0", "100,0,0", *rows[-shared:]]))
        run = made.made_run(root, train=str(root / "data" / "train.csv"))
        made.end(run, root)
        assert json.loads((run.path / measure.RECORD).read_text())["rows"] == str(shared)
        assert (f"{shared} of 30 lines of the test's tables" in problems_of(run)) is named


def test_a_file_that_the_data_module_splits_is_named_with_a_way_out(tmp_path):
    "One file for training and test: its rows cannot be told apart, whatever the training says of them."
    root = made.make_project(tmp_path / "project")
    own = str(root / "data" / "test.csv")
    run = made.made_run(root, train=own, test=own)
    made.end(run, root)
    assert "1 of 1 files of the test are in the training" in problems_of(run)
    assert "write the test's rows to a file of their own" in problems_of(run)


# ---- attacks on the log, the record and the checkpoint


@pytest.mark.parametrize("attack", ["rank", "worker"])
def test_a_line_that_the_training_writes_is_named(honest, tmp_path, attack):
    "A number that a process of the job writes itself: by this package in its own log, or by hand in the worker's."
    root = made.make_project(tmp_path / "project")
    run = made.made_run(root)
    if attack == "rank":
        run.writer("rank0", 0).write(
            Sealed(seal="3f9c21ab", values={"accuracy": 1.0}, checkpoint="checkpoints/best.ckpt")
        )
        assert values_of(run) == {}
    else:
        forged = {"t": 1.0, "kind": "sealed", "rank": None, "seal": "3f9c21ab", "values": {"accuracy": 1.0}}
        with open(run.events / "worker.jsonl", "a") as file:
            file.write(json.dumps({**forged, "checkpoint": "checkpoints/best.ckpt"}) + "\n")
    made.end(run, root)
    assert values_of(run) == values_of(honest[1])
    assert "the training wrote a line of a sealed number" in problems_of(run)
    assert f"{attack}" in notes_of(run)


@pytest.mark.parametrize("moment", [0.0, 9e9], ids=["the past", "the future"])
def test_a_line_after_the_end_is_neutral(honest, copied, moment):
    root, run = copied
    line = {"t": moment, "kind": "sealed", "rank": None, "seal": seal_of(run), "values": {"accuracy": 1.0}}
    with open(run.events / "worker.jsonl", "a") as file:
        file.write(json.dumps({**line, "checkpoint": "checkpoints/best.ckpt"}) + "\n")
    assert values_of(run) == values_of(honest[1])


def test_an_edited_log_is_named(copied):
    root, run = copied
    edit_lines(run.events / "worker.jsonl", "sealed", values={"accuracy": 1.0})
    assert "the event in the log does not say" in refusal_of(root, run)


def test_an_edited_record_is_named(copied):
    root, run = copied
    edit_record(run, values={"accuracy": 1.0})
    assert "one of the two was edited" in refusal_of(root, run)


def test_a_renamed_seal_is_named(copied):
    "A number of a smaller test set under the seal of the whole one."
    import hashlib

    root, run = copied
    edit_record(run, seal="3f9c21ab")
    digest = hashlib.sha256((run.path / measure.RECORD).read_bytes()).hexdigest()
    edit_lines(run.events / "worker.jsonl", "sealed", seal="3f9c21ab", record=digest)
    assert "is not that of the code, data and packages" in refusal_of(root, run)


def test_log_and_record_edited_alike_are_found_by_measuring_again(copied):
    import hashlib

    root, run = copied
    edit_record(run, values={"accuracy": 1.0})
    digest = hashlib.sha256((run.path / measure.RECORD).read_bytes()).hexdigest()
    edit_lines(run.events / "worker.jsonl", "sealed", values={"accuracy": 1.0}, record=digest)
    entry = promote(Run(run), "digits", folder=root, recompute=True)
    assert entry.value == pytest.approx(0.8) and entry.sealed["recomputed"]
    assert any("the log says accuracy 1; measured again it is 0.8" in line for line in entry.checks)


def test_a_checkpoint_that_is_swapped_is_named(copied):
    root, run = copied
    path = run.checkpoints / "best.ckpt"
    path.chmod(0o644)
    made.save_model(path, good=False)
    assert "is not what the run saved" in refusal_of(root, run)


def test_a_checkpoint_that_is_swapped_with_its_event_is_named(copied):
    from fsdl_dev.core.files import file_sha256

    root, run = copied
    path = run.checkpoints / "best.ckpt"
    path.chmod(0o644)
    made.save_model(path, good=False)
    told = {"sha256": file_sha256(path), "bytes": path.stat().st_size}
    edit_lines(run.events / "rank0.jsonl", "checkpoint", **told)
    assert "which was replaced after it was measured" in refusal_of(root, run)


def test_a_sealed_cell_that_is_edited_after_the_run_measures_again(copied):
    "The cells of today count, and the number has another name."
    root, run = copied
    easier = made.ROWS.replace("for line in lines]", "for line in lines[:4]]")
    made.make_project(root, made.cells(rows=easier))
    entry = promote(Run(run), "digits", folder=root)
    assert entry.sealed["recomputed"] and entry.metric != f"accuracy@{seal_of(run)}"


def test_a_project_without_its_sealed_cells_is_named(copied):
    root, run = copied
    promote(Run(run), "digits", folder=root)
    again = type(run)(root / ".fsdl" / "runs" / run.id)
    sources = [text.replace("#| sealed\n", "") for text in made.cells()]
    made.write_notebook(root / "nbs" / "00_digits.ipynb", sources)
    assert "the project has no sealed cells any more" in refusal_of(root, again)


# ---- attacks on the environment, by the parts that look


def installed(place: Path, text: str = "def score(a, b):\n    return 0.5\n") -> Path:
    "A package as pip installs it."
    import base64
    import hashlib

    (place / "tinymetric").mkdir(parents=True)
    file, about = place / "tinymetric" / "__init__.py", place / "tinymetric-1.0.dist-info"
    file.write_text(text)
    about.mkdir()
    digest = base64.urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).rstrip(b"=").decode()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tinymetric\nVersion: 1.0\n")
    (about / "RECORD").write_text(f"tinymetric/__init__.py,sha256={digest},{file.stat().st_size}\n")
    return file


def test_a_package_that_is_changed_on_disk_is_named(tmp_path, monkeypatch):
    file = installed(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    import tinymetric  # noqa: F401

    found = clean_process._distributions(["tinymetric"])["tinymetric"]
    assert clean_process.changed_files("tinymetric", found) == []
    file.write_text("def score(a, b):\n    return 1.0\n")
    assert clean_process.changed_files("tinymetric", found) == [
        "tinymetric/__init__.py of tinymetric is not as it was installed"
    ]
    sys.modules.pop("tinymetric")


def test_a_start_up_file_is_a_part_of_the_seal(tmp_path):
    (tmp_path / "zz_patch.pth").write_text("import sys; sys.patched = True\n")
    (tmp_path / "paths.pth").write_text("../lib\n")
    code, own = clean_process.startup_files([str(tmp_path)])
    assert [file.name for file in code] == ["zz_patch.pth"] == [*own]
    about = {"code": "1f", "data": {}, "packages": {}, "variables": {}, "startup": {}}
    assert measure.seal_of(about) != measure.seal_of({**about, "startup": own})


def test_a_variable_that_the_sealed_code_names_is_a_part_of_the_seal():
    rows = made.ROWS.replace(".split()", ".split()[: int(os.environ['TEST_LIMIT'])]")
    program = program_of(made.cells(imports="import os\n" + made.IMPORTS, rows=rows))
    assert program.variables == ("TEST_LIMIT",)
    about = {
        "code": program.code,
        "data": {},
        "packages": {},
        "variables": {"TEST_LIMIT": "1"},
        "startup": {},
    }
    assert measure.seal_of(about) != measure.seal_of({**about, "variables": {"TEST_LIMIT": "5"}})


# ---- cells that are not clear


def files_of(sources, notebook="nbs/00_digits.ipynb", module="proj/digits.py", **more):
    cells = [{"cell_type": "code", "source": text, "metadata": {}, "outputs": []} for text in sources]
    content = json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}).encode()
    files = {notebook: content, "proj/__init__.py": b"", module: made.exported(sources).encode()}
    return files | {name: text.encode() for name, text in more.items()}


def program_of(sources, **options):
    files = files_of(sources, **options)
    return find_program(files, files.__getitem__, package="proj")


MAGIC = f"#| export\n#| sealed\n%time\n{made.EVALUATE}"
WRONG = {
    "two functions": (made.cells(evaluate="def a(m): ...\ndef b(m): ..."), "which one gets the model"),
    "no function": (made.cells(evaluate="x = 1"), "define no function"),
    "twice": (made.cells(evaluate=f"{made.EVALUATE}\n{made.EVALUATE}"), "define evaluate 2 times"),
    "not exported": ([*made.cells()[:-1], f"#| sealed\n{made.EVALUATE}"], "is not exported"),
    "a magic": ([*made.cells()[:-1], MAGIC], "cannot read this sealed cell"),
    "by a name": (
        made.cells(evaluate="def evaluate(model):\n    return __import__('proj.x').run(model)\n"),
        "uses __import__",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_cells_that_are_not_clear_say_what_to_do(name):
    sources, words = WRONG[name]
    with pytest.raises(FsdlError, match=words) as refused:
        program_of(sources)
    assert refused.value.fix and refused.value.where


def test_a_module_that_was_not_exported_again_says_so():
    files = files_of(made.cells())
    files["proj/digits.py"] = files["proj/digits.py"].replace(b"argmax(1)", b"argmin(1)")
    with pytest.raises(FsdlError, match="does not have this sealed cell") as refused:
        find_program(files, files.__getitem__, package="proj")
    assert refused.value.fix == "nbdev_export"


# ---- honest work


def change(**options):
    return lambda: program_of(made.cells(**options))


def source_with(at, old, new):
    sources = made.cells()
    assert old in sources[at]
    return lambda: program_of([*sources[:at], sources[at].replace(old, new), *sources[at + 1 :]])


def moved(order):
    sources = made.cells()
    return lambda: program_of([sources[0], *(sources[at] for at in order)])


def with_more(*sources, first=False):
    own = made.cells()
    return lambda: program_of([own[0], *sources, *own[1:]] if first else [*own, *sources])


def other_names(**names):
    sources = made.cells()
    sources[0] = "#| default_exp " + Path(names.get("module", "proj/digits.py")).stem
    return lambda: program_of(sources, **names)


EDITS = {
    "the same": change(),
    "another learning rate": change(settings="LR = 0.5\n"),
    "more hyperparameters": change(settings="LR = 0.1\nEPOCHS = 30\nBATCH = 64\n"),
    "a comment in the sealed cell": source_with(5, "    said =", "    # the answer\n    said ="),
    "a comment at its end": source_with(5, ".argmax(1)", ".argmax(1)  # the class"),
    "empty lines": source_with(5, "    said =", "\n\n    said ="),
    "a docstring": source_with(5, ":\n    rows", ':\n    "Right answers."\n    rows'),
    "a longer docstring of a helper": source_with(
        4, "The rows of the test.", "Rows: two features and a label."
    ),
    "other quotes": source_with(5, '"accuracy"', "'accuracy'"),
    "another layout": source_with(5, "test_rows()", "(\n        test_rows()\n    )"),
    "spaces": source_with(5, "model(rows[:, :2])", "model( rows[ : , :2 ] )"),
    "types of parameters": source_with(5, "(model)", "(model: torch.nn.Module)"),
    "no type of what is returned": source_with(5, " -> dict[str, float]", ""),
    "a class as a type": source_with(5, "(model)", "(model: Net)"),
    "another model": source_with(3, "torch.nn.Linear(2, 2)", "torch.nn.Linear(2, 2, bias=True)"),
    "a deeper model": source_with(3, "return self.layer(x)", "return self.layer(x).relu()"),
    "moved helpers": moved([1, 4, 3, 2, 5]),
    "the sealed cell above its helper": moved([1, 2, 3, 5, 4]),
    "settings at the end": moved([1, 3, 4, 5, 2]),
    "a new cell that is not exported": with_more("print('looking')"),
    "a new exported cell": with_more("#| export\ndef plot():\n    return 1"),
    "a new cell at the top": with_more("#| export\nSEED = 1", first=True),
    "a new import": with_more("#| export\nimport json"),
    "a new class": with_more("#| export\nclass Other(Net):\n    pass"),
    "a training loop": with_more("#| export\ndef train(epochs=3):\n    return Net()"),
    "a launch cell": with_more("%%fsdl_launch --gpus 8\ntrain()"),
    "a launch on fewer GPUs": with_more("%%fsdl_launch --gpus 1\ntrain()"),
    "a renamed notebook": other_names(notebook="nbs/07_numbers.ipynb"),
    "a renamed module": other_names(module="proj/numbers.py"),
    "a notebook in a folder": other_names(notebook="nbs/study/00_digits.ipynb"),
    "an unrelated module": lambda: program_of(made.cells(), **{"proj/other.py": "X = 1\n"}),
    "a directive in the other order": source_with(5, "#| export\n#| sealed", "#| sealed\n#| export"),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_honest_edit_keeps_the_seal(name):
    assert EDITS[name]().code == program_of(made.cells()).code


CHANGES = {
    "another metric": source_with(5, "torch.eq", "torch.ne"),
    "fewer rows": source_with(4, "for line in lines]", "for line in lines[:2]]"),
    "another file": source_with(4, "test.csv", "train.csv"),
    "another import under the same name": source_with(
        1, "from pathlib import Path", "from shutil import Path"
    ),
    "a helper that is changed in place": with_more("#| export\ntest_rows = lambda: None"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_an_edit_of_what_is_measured_is_another_seal(name):
    assert CHANGES[name]().code != program_of(made.cells()).code


def test_helpers_of_another_module_belong_to_the_seal():
    imports = made.IMPORTS + "from proj.tools import right\n"
    sources = made.cells(imports=imports, evaluate=made.EVALUATE.replace("torch.eq", "right"))
    tools = "LIMIT = 3\nUNUSED = 1\n\n\ndef right(a, b):\n    return (a == b)[:LIMIT]\n"
    one = program_of(sources, **{"proj/tools.py": tools})
    assert "UNUSED" not in one.modules["proj.tools"] and "LIMIT" in one.modules["proj.tools"]
    assert (
        program_of(sources, **{"proj/tools.py": tools.replace("UNUSED = 1", "UNUSED = 2")}).code == one.code
    )
    assert program_of(sources, **{"proj/tools.py": tools.replace("LIMIT = 3", "LIMIT = 2")}).code != one.code


def test_a_folder_that_is_called_as_a_library_belongs_to_the_seal():
    "It is what the training imports, too; its number has another name."
    shadowed = program_of(made.cells(), **{"torch/__init__.py": "eq = lambda a, b: a * 0 + 1\n"})
    assert shadowed.code != program_of(made.cells()).code and "torch" in shadowed.modules


# ---- two people at once


PROMOTE = """
import sys
from fsdl_dev.core.errors import FsdlError
from fsdl_dev.records.run import open_run
from fsdl_dev.core.settings import find_project
from fsdl_dev.share.promote import promote
root, run = sys.argv[1:]
try:
    promote(open_run(find_project(root).store, run), "digits", folder=root)
    print("promoted")
except FsdlError as error:
    print("refused", "not better" in str(error))
"""


def test_two_people_promote_at_once(copied):
    "Both have the same number: one of them is the holder, and the other one is told that it is not better."
    import subprocess

    root, run = copied
    other = root / ".fsdl" / "runs" / f"{run.id[:-5]}other"
    shutil.copytree(run.path, other)
    command = [sys.executable, "-c", PROMOTE, str(root)]
    own_store = {name: value for name, value in os.environ.items() if name != "FSDL_STORE"}
    both = [
        subprocess.Popen([*command, name], stdout=subprocess.PIPE, text=True, env=own_store)
        for name in (run.id, other.name)
    ]
    said = sorted(one.communicate(timeout=300)[0].strip() for one in both)
    assert said == ["promoted", "refused True"]
    assert len((root / "models" / "digits.jsonl").read_text().splitlines()) == 1
