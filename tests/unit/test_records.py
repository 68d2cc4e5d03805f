"""Runs compared, repeated and traced to their inputs: every fact comes from real runs of a small project."""

import json
import os
import shlex
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest import write_notebook

import fsdl_dev
from fsdl_dev.cli.main import main
from fsdl_dev.core.errors import FsdlError
from fsdl_dev.core.event_kinds import Artifact, Checkpoint, Data, Metric
from fsdl_dev.core.files import file_sha256
from fsdl_dev.core.manifest import MANIFEST, Manifest
from fsdl_dev.core.settings import find_project
from fsdl_dev.engines import target as registry
from fsdl_dev.engines.local import LocalTarget
from fsdl_dev.environments.made import make_environment
from fsdl_dev.launcher.options import complete_line, parse_line
from fsdl_dev.notebook.magics import LINES
from fsdl_dev.records.lineage import read_row, read_summary
from fsdl_dev.records.search.store import RunStore
from fsdl_dev.share.reproduce import Reproduction, expectations
from fsdl_dev.snapshot.blobs import blob_path
from fsdl_dev.snapshot.environment import environment_lock

CELLS = [
    "# Study",
    "lr = 0.1\nseed = 1",
    "import random\nfrom pathlib import Path\nimport fsdl_dev\nfrom helper import gain",
    "rng = random.Random(seed)\nfor step in range(1, 4):\n"
    "    fsdl_dev.log(step=step, val_acc=gain(step * lr) + rng.random() / 100)",
]
HELPER = "def gain(x):\n    return x\n"


@pytest.fixture
def root(make_project, tmp_path, monkeypatch):
    """A project without nbdev: a notebook, a script, a helper, and data that git ignores."""
    root = make_project(nbdev=0, notebooks={}, folder=tmp_path / "study")
    (root / ".gitignore").write_text("__pycache__/\n.fsdl/\ndata/\n")
    (root / "data").mkdir()
    (root / "data" / "x.csv").write_text("1,2\n")
    (root / "helper.py").write_text(HELPER)
    (root / "train.py").write_text("import sys\nprint(sys.argv[1:])\n")
    cells(root, CELLS)
    monkeypatch.chdir(root)
    return root


def cells(root: Path, sources: list[str]) -> None:
    """Write the notebook; a cell keeps its id wherever its text is edited."""
    path = write_notebook(root / "study.ipynb", sources)
    book = json.loads(path.read_text())
    for number, cell in enumerate(book["cells"]):
        cell["id"] = f"cell-{number}"
    path.write_text(json.dumps(book))


class HeldTarget(LocalTarget):
    """A queue that starts nothing: launches pass every gate, and cost no process."""

    kind = "held"

    def submit(self, run, job, project, say=None):
        run.set_state(run.writer("launcher"), "queued", "held")

    def poll(self, run):
        return "queued"


@pytest.fixture
def held(root, monkeypatch):
    """The root, whose launches go to the queue that starts nothing."""
    monkeypatch.setitem(registry._KINDS, "held", HeldTarget)
    return root


def launch(what: str = "study.ipynb", on: str = "test", **options):
    return fsdl_dev.launch(what, on=on, no_test=True, say=None, **options)


def hold(what: str = "study.ipynb", **options):
    return launch(what, "held", **options)


def logged(run, scale: float):
    """The run with a curve of three points."""
    writer = run.dir.writer("rank0", rank=0)
    for step in (1, 2, 3):
        writer.write(Metric(step=step, values={"val_acc": scale * step / 10}))
    return run


def fsdl(*words: str):
    return CliRunner().invoke(main, list(words))


def test_diff_names_the_one_thing_that_differs(held, tmp_path, monkeypatch):
    root, base = held, hold(data=["data"])
    script = hold("train.py", args=["--lr", "0.1"])
    differ = {
        ("parameter lr: – -> 0.3",): hold(data=["data"], params={"lr": 0.3}),
        ("parameter seed: – -> 2",): hold(data=["data"], params={"seed": 2}),
        ("tag purpose: – -> check",): hold(data=["data"], tags={"purpose": "check"}),
        ("job time: – -> 1h",): hold(data=["data"], time="1h"),
        ("parameter lr: 0.1 -> 0.3",): hold("train.py", args=["--lr", "0.3"]),
    }
    (root / "data" / "x.csv").write_text("1,3\n")
    differ[("data data:",)] = hold(data=["data"])
    (root / "data" / "x.csv").write_text("1,2\n")

    (root / "helper.py").write_text(HELPER.replace("return x", "return 2 * x"))
    differ[("file helper.py: changed", "-    return x")] = hold(data=["data"])
    (root / "helper.py").write_text(HELPER)

    (root / "new.py").write_text("x = 1\n")
    differ[("file new.py: added", "+x = 1")] = hold(data=["data"])
    (root / "new.py").unlink()

    cells(root, [CELLS[0], "lr = 0.5\nseed = 1", *CELLS[2:]])
    differ[("cell study.ipynb, cell 1 “lr”: changed", "-lr = 0.1", "+lr = 0.5")] = hold(data=["data"])
    cells(root, [CELLS[0], "lr = 0.1\nseed = 7", *CELLS[2:]])
    differ[("cell study.ipynb, cell 1 “lr”: changed", "-seed = 1", "+seed = 7")] = hold(data=["data"])
    cells(root, CELLS)

    (tmp_path / "packages" / "helpful-2.0.dist-info").mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    differ[("environment helpful: none -> 2.0",)] = hold(data=["data"])

    for expected, run in differ.items():
        found = fsdl_dev.diff(script if "lr: 0.1" in expected[0] else base, run)
        assert len(found.differences) == 1 and not found.unknown, found
        assert all(text in found.to_text() for text in expected), found
        assert found.differences[0].name.split(",")[0] in found._repr_html_()
        only_seed = "seed" in "".join(expected)
        assert (found.verdict == "Only the seed differs.") == only_seed, found.verdict


def test_compare_and_diff_from_a_terminal(held):
    first = logged(hold(data=["data"]), 1.0)
    second = logged(hold(params={"lr": 0.3}, tags={"status": "baseline"}), 3.0)
    told = fsdl("compare", first.words, second.words)
    assert told.exit_code == 0, told.output
    assert "The runs did not use the same data. data has 2 digests" in told.stdout
    lines = {line.split("  ")[0]: line for line in told.stdout.splitlines()}
    assert lines["lr (parameter)"].split()[-2:] == ["0.3", "–"] and "helper" not in told.stdout
    hours = json.loads(fsdl("compare", first.words, second.words, "--x", "hours", "--json").stdout)
    assert hours["runs"] == [second.id, first.id] and len(hours["curves"]["val acc"][first.words]) == 3
    refused = {
        ("compare", first.words): "needs two runs",
        ("compare", first.words, "brave-nothing"): "No run is called",
        ("compare", first.words, second.words, "--x", "money"): "has no recorded cost",
        ("compare", first.words, second.words, "--metric", "val_ac"): "Did you mean 'val_acc'?",
        ("diff", first.words, first.words): "Both names mean",
    }
    for words, expected in refused.items():
        answer = fsdl(*words)
        assert answer.exit_code in (2, 4) and expected in answer.stderr and "fix:" in answer.stderr, (
            answer.stderr
        )

    line = parse_line(LINES["fsdl_diff"], f"{first.words} {second.words}")
    assert LINES["fsdl_diff"].callback(None, **line).verdict == "3 things differ: 1 parameter, 1 data, 1 tag."
    tagged = LINES["fsdl_compare"].callback(
        None, **parse_line(LINES["fsdl_compare"], f"{first.words} {second.words}")
    )
    assert tagged.runs[0].id == second.id and "fsdl-curves" in tagged._repr_html_()
    assert first.words in complete_line(LINES["fsdl_compare"], [second.words], first.words[:3])

    (second.store / "snapshots" / f"{second.snapshot.digest}.json").unlink()
    unknown = fsdl("diff", first.words, second.words).stdout
    assert "But not all could be compared" in unknown and "There is no snapshot" in unknown


@pytest.mark.slow
def test_a_run_is_repeated_here_and_from_a_folder_elsewhere(root, tmp_path):
    (root / "train.py").write_text("\n".join(CELLS[1:]))
    run = launch("train.py", data=["data"])
    assert run.wait(progress=False).state == "succeeded", run.logs()
    (root / "train.py").write_text("raise SystemExit(9)")
    (root / "helper.py").unlink()

    told: list[str] = []
    again = fsdl_dev.reproduce(run, say=told.append)
    assert again.again is not None and again.again.state == "succeeded", again.again and again.again.logs()
    assert again.ok and [row[3] for row in again.rows] == ["identical"], again
    assert again.again.tags["reproduces"] == run.id and "1 identical" in again.to_text()
    assert fsdl_dev.diff(run, again.again).verdict.startswith("One thing differs: tag reproduces")
    said = "\n".join(told)
    assert "data is the same" in said and "\n✓ cost" in said

    packed = run.package(tmp_path / "packed")
    away = tmp_path / "elsewhere" / "packed"
    shutil.copytree(packed, away)
    shutil.copytree(root / "data", away / "project" / "data")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FSDL_")}
    environment |= {"HOME": str(tmp_path / "home"), "PYTHON": sys.executable, "PYTHONPATH": ""}
    shutil.rmtree(root)
    done = subprocess.run(
        ["sh", str(away / "repeat.sh"), "--on", "test", "--json"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    assert answer["ok"] and [row["verdict"] for row in answer["metrics"]] == ["identical"]


def test_what_cannot_be_repeated_is_said_first(held, tmp_path, monkeypatch):
    run = hold(data=["data"])
    dry = fsdl("reproduce", run.words, "--dry-run")
    assert dry.exit_code == 0 and "Nothing was launched." in dry.output, dry.output
    assert "✓ packages: the same as today's" in dry.output and "! seed" not in dry.output

    (held / "data" / "x.csv").write_text("9\n")
    assert "! data: data has changed" in fsdl("reproduce", run.words, "--dry-run").output
    shutil.rmtree(held / "data")
    gone = fsdl("reproduce", run.words)
    assert gone.exit_code == 3 and "data is no longer there" in gone.output and "ln -s" in gone.output

    (tmp_path / "packages" / "helpful-2.0.dist-info").mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    assert "today's differ: helpful: none -> 2.0" in str(expectations(run, find_project(held)))

    digest = run.snapshot.files["helper.py"]["sha256"]
    Path(blob_path(run.store, digest)).unlink()
    missing = fsdl("reproduce", run.words)
    assert missing.exit_code == 3 and "helper.py" in missing.output and "from a backup" in missing.output
    assert "how is not known" in fsdl("diff", run.words, changed(held).words).output

    (run.path / "snapshot.json").unlink()
    assert (
        "has no snapshot, so its code, environment and data are not known"
        in fsdl("reproduce", run.words).output
    )
    assert "is not a tolerance" in fsdl("reproduce", run.words, "--tolerance", "-1").output


def changed(root: Path):
    """A run of the project with another helper."""
    (root / "data").mkdir()
    (root / "helper.py").write_text(HELPER + "\n\n# more\n")
    return hold()


@pytest.mark.slow
def test_the_packages_of_a_lock_are_made_by_uv(root, tmp_path):
    lock = environment_lock()
    lock |= {"torch": None, "packages": {"iniconfig": "2.0.0", "fsdl-dev": "0.1.0 (this project)"}}
    try:
        python = make_environment(lock, tmp_path)
    except FsdlError as error:
        pytest.skip(f"uv can install nothing here: {error}")
    assert make_environment(lock, tmp_path) == python, "once"
    (root / "train.py").write_text(
        "import iniconfig, fsdl_dev\nprint('from', iniconfig.__file__)\nfsdl_dev.log(x=1.0)\n"
    )
    asked = {"target_fields": {"python": python}, "tags": {"sweep": "brave-otter"}}
    run = launch("train.py", **asked).wait(progress=False)
    assert run.state == "succeeded" and f"from {tmp_path}" in run.logs(), run.logs() or run.tail()
    assert set(run.snapshot.environment["packages"]) == {"iniconfig"}

    shutil.rmtree(tmp_path / "environments")
    told: list[str] = []
    again = fsdl_dev.reproduce(run, say=told.append)
    assert again.again is not None and again.ok, again.again and again.again.tail()
    assert f"from {run.store / 'environments'}" in again.again.logs()
    assert "sweep" not in again.again.tags, "a repetition is no trial"
    assert any(line.startswith("packages: uv installs 1 of them") for line in told), told
    assert again.again.snapshot.digest == run.snapshot.digest

    packed = run.package(tmp_path / "packed")
    away = {name: value for name, value in os.environ.items() if not name.startswith("FSDL_")}
    away |= {"PATH": f"{Path(sys.executable).parent}:{away['PATH']}", "HOME": str(tmp_path / "home")}
    away["PYTHONPATH"] = str(
        Path(pytest.__file__).parents[1]
    )  # what fsdl itself needs; the run's lock has it
    done = subprocess.run(
        ["sh", str(packed / "repeat.sh"), "--on", "test"], env=away, capture_output=True, text=True
    )
    assert done.returncode == 0 and "1 of 1 metrics within" in done.stdout, done.stdout + done.stderr
    assert list((packed / "env").glob("lib/*/site-packages/iniconfig")), (
        "repeat.sh made its environment by uv"
    )

    lock["packages"] = {"iniconfig": "0.0.0.1"}
    with pytest.raises(FsdlError, match="uv cannot make its environment"):
        make_environment(lock, tmp_path)


def test_lineage_names_inputs_artifacts_and_changes(root):
    (root / "train.py").write_text(
        "from pathlib import Path\nPath(__file__).resolve().with_name('table.csv').write_text('1')\n"
    )
    run = launch("train.py", data=["data"]).wait(progress=False)
    assert run.state == "succeeded", run.logs()
    assert run.words in fsdl("runs").output and read_summary(run.dir)["links"], "the first look writes it"
    table = run.dir.outputs / "table.csv"
    assert not table.stat().st_mode & 0o222, "an ended run's files are read-only"
    told = fsdl("lineage", run.words).output
    assert all(f"  {kind}" in told for kind in ("code", "environment", "data", "file", "cost")), told
    assert "train.py" in told and "with changes in" in told and "outputs/table.csv" in told

    digest = run.view.products.outputs.digests["table.csv"]
    for word in (digest[:10], "table.csv", "data", run.snapshot.digest[:12]):
        assert run.words in fsdl("lineage", word).output, word
    assert "'deadbeef' is not a run, and no run used" in fsdl("lineage", "deadbeef").output

    run.fetch(root / "copy", say=None)
    run.fetch(root / "copy", say=None)  # a copy can be written again
    table.chmod(0o644)
    table.write_text("2")
    assert "outputs/table.csv" in run.lineage.to_text() and "CHANGED" in run.lineage.to_text()
    with pytest.raises(FsdlError, match="table.csv is not what the run wrote"):
        run.fetch(root / "other", say=None)


def ended(run, data: bytes = b"weights", **more):
    """The run, ended with a checkpoint, a score and the digest of its data."""
    worker, path = run.dir.writer("worker"), run.dir.checkpoints / "last.ckpt"
    for state in ("starting", "running"):
        run.dir.set_state(worker, state, "by hand")
    path.write_bytes(data)
    rank, score = run.dir.writer("rank0", rank=0), {"metric": "val_acc", "mode": "max", "value": 0.9}
    rank.write(Metric(step=3, values={"val_acc": 0.9}))
    rank.write(Data(name="Numbers", digest="1f" * 32, splits={"train": 3}, sources={"train": "x.csv"}))
    rank.write(
        Checkpoint(
            path="checkpoints/last.ckpt",
            step=3,
            sha256=file_sha256(path),
            best=True,
            **score,
            **more,
        )
    )
    run.dir.set_state(worker, "succeeded", "by hand")
    return run


def refused(line: str, call) -> str:
    """What the terminal, the notebook and Python say of the same bad input, which is the same."""
    name, *words = shlex.split(line)
    answer, magic = fsdl(name, *words), LINES[f"fsdl_{name}"]
    with pytest.raises(FsdlError) as python:
        call()
    with pytest.raises((FsdlError, SystemExit)) as notebook:
        magic.callback(None, **parse_line(magic, line.partition(" ")[2]))
    assert answer.exit_code not in (0, 1), answer.output
    assert str(python.value) == str(notebook.value) and python.value.what in answer.output, answer.output
    return str(python.value)


def test_bad_input_is_answered_alike_from_all_doors(held):
    (held / "pyproject.toml").write_text(
        '[tool.fsdl_dev]\nrequired_tags = ["dataset"]\nfields.task.values = ["digits", "text"]\n'
    )
    with pytest.raises(FsdlError, match="add --tag dataset=..."):
        hold()
    with pytest.raises(FsdlError, match="There is no data at 'nothing.csv'"):
        hold(data=["nothing.csv"])
    tags = {"dataset": "x@v1"}
    run, other = ended(hold(tags=tags)), hold(tags=tags)
    load, runs = fsdl_dev.load_run, fsdl_dev.runs
    cases = {
        f"tag {run.words} task=digit": (lambda: run.tag(task="digit"), "Did you mean 'digits'?"),
        f"tag {run.words} dataset=": (lambda: run.tag(dataset=None), "This project requires that tag."),
        "lineage brave-nothing": (lambda: fsdl_dev.lineage("brave-nothing"), "is not a run, and no run used"),
        f"compare {run.words} 20": (lambda: fsdl_dev.compare(run.words, "20"), "2 runs are called '20'"),
        f"diff brave-nothing {run.words}": (lambda: load("brave-nothing"), "No run is called"),
        "runs 'val_ac > 1'": (lambda: runs("val_ac > 1"), "Did you mean 'val_acc'?"),
        "runs 'task = a and'": (lambda: runs("task = a and"), " " * 16 + "^"),
        "runs 'task = a or state = broken'": (lambda: runs("task = a or state = broken"), " " * 24 + "^"),
        f"promote {other.words} m": (lambda: fsdl_dev.promote(other, "m"), "has not ended"),
        f"promote {run.words} m prodution": (lambda: fsdl_dev.promote(run, "m", "prodution"), "'production'"),
        f"promote {run.words} m": (lambda: fsdl_dev.promote(run, "m"), "Not promoted: 2 of 5 checks failed."),
        f"package {run.words} {held}": (
            lambda: run.package(held),
            "The folder to pack the run into is not empty.",
        ),
        "rollback digits": (lambda: fsdl_dev.rollback("digits"), "No model is called 'digits'."),
        "models digits": (lambda: fsdl_dev.promotions("digits"), "No model is called 'digits'."),
        f"reproduce {run.words} --tolerance -1": (
            lambda: fsdl_dev.reproduce(run, tolerance=-1.0),
            "-1.0 is not a tolerance.",
        ),
        f"note {run.words} ' '": (lambda: run.note(" "), "The note is empty."),
        f"mirror {run.words}": (lambda: fsdl_dev.mirror(run), "was launched without a tracker"),
    }
    for line, (call, expected) in cases.items():
        assert expected in refused(line, call), line
    with closing(sqlite3.connect(run.store / "runs.sqlite")) as index:  # as a flipped byte leaves it
        index.execute("UPDATE rows SET row = substr(row, 1, 99)")
        index.commit()
    assert [row.id for row in runs()] == [other.id, run.id], "a damaged index is made anew"
    with closing(sqlite3.connect(run.store / "runs.sqlite")) as index:
        index.execute("PRAGMA user_version = 99")
    for text in (repr(runs()), fsdl("runs").output):
        assert "newer fsdl_dev" in text and "fix: pip install -U fsdl-dev" in text, text


def test_a_name_that_is_an_argument_here_and_a_tag_there_finds_both(held):
    script, tagged = hold("train.py", args=["--depth", "2"]), hold(tags={"depth": "3", "owner": "ada"})
    other = hold("train.py", args=["--depth=40", "--owner", "bob"])
    assert script.params == {"depth": 2} and other.params == {"depth": 40, "owner": "bob"}
    table = fsdl_dev.runs("depth < 10", sort="depth", columns="depth", folder=held)
    assert [row.id for row in table] == [script.id, tagged.id] and "--depth" not in repr(table)
    assert [row.id for row in fsdl_dev.runs("depth = 3 and owner = ada", folder=held)] == [tagged.id]
    assert not fsdl_dev.runs("owner = bob", folder=held)  # the tag


def test_a_changed_file_is_named_wherever_it_is_read(held):
    run = ended(hold(tags={"task": "digits"}))
    run.dir.result_file.write_text("{}")
    read_row(run.dir, run.dir.job())
    assert "CHANGED" not in run.lineage.to_text() and "train 3 from x.csv" in run.lineage.to_text()
    (run.dir.checkpoints / "last.ckpt").write_bytes(b"Weights")
    said = "last.ckpt is not what the run saved"
    for read in (run.load, run.export, lambda: run.fetch(held / "copy", say=None)):
        with pytest.raises(FsdlError, match=said):
            read()
    with pytest.raises(FsdlError, match=said):
        fsdl_dev.promote(run, "digits")
    assert "checkpoints/last.ckpt" in (told := run.lineage.to_text()) and told.count("CHANGED") == 1


def test_an_export_finds_the_code_and_prints_json_alone(held, monkeypatch):
    import torch

    monkeypatch.setattr(sys, "path", [*sys.path])
    (held / "small_net.py").write_text(
        "import pytorch_lightning as pl\nimport torch\nclass Net(pl.LightningModule):\n"
        "    def __init__(self):\n        super().__init__()\n        self.layer = torch.nn.Linear(2, 2)\n"
    )
    weights = {"layer.weight": torch.ones(2, 2), "layer.bias": torch.ones(2)}
    torch.save({"state_dict": weights, "pytorch-lightning_version": "2.6"}, held / "x.ckpt")
    run = ended(hold(), (held / "x.ckpt").read_bytes(), cls="small_net:Net")
    answer = fsdl("export", run.words, "--to", "safetensors", "--json")
    assert answer.exit_code == 0, answer.output
    assert Path(json.loads(answer.stdout)["folder"], "model.safetensors").is_file()


def test_exports_and_promotions_are_found_both_ways(held):
    run = ended(hold(tags={"task": "digits"}))
    place = run.path / "exports" / "onnx"
    place.mkdir(parents=True)
    (place / "model.onnx").write_bytes(b"graph")
    digest = file_sha256(place / "model.onnx")
    files = {"model.onnx": {"bytes": 5, "sha256": digest}}
    (place / MANIFEST).write_text(Manifest(3, files).text())
    said = {"path": "exports/onnx", "sha256": file_sha256(place / MANIFEST), "files": {"model.onnx": digest}}
    run.dir.writer("people").write(Artifact(name="onnx", checkpoint="last.ckpt", **said))
    (held / "models").mkdir()
    line = {"name": "digits", "status": "production", "run": run.id, "files": {"last.ckpt": "ab" * 32}}
    line |= {"verb": "promote", "who": "ada", "when": "2026-11-23T10:00"}
    (held / "models" / "digits.jsonl").write_text(json.dumps(line) + "\nno JSON\n")
    told = run.lineage.to_text()
    assert "exports/onnx" in told and "onnx of last.ckpt" in told and "digits@production" in told, told
    shutil.rmtree(run.dir.events)
    for word in ("model.onnx", digest[:8], "exports/onnx", "digits@production", "digits", "abababab"):
        assert run.words in fsdl("lineage", word).output, word


def test_a_required_dataset_is_filled_in_from_what_is_known(held):
    (held / "pyproject.toml").write_text('[tool.fsdl_dev]\nrequired_tags = ["dataset"]\n')
    asked = {"on": "held", "no_test": True, "say": None}
    tags = [check for check in fsdl_dev.check("train.py", **asked) if check.name == "tags"]
    assert tags[0].failed and "add --tag dataset=..." in tags[0].fix
    given = [check for check in fsdl_dev.check("train.py", data=["data"], **asked) if check.name == "tags"]
    assert "dataset=data@" in given[0].message and not given[0].failed
    dry = fsdl("launch", "train.py", "--on", "held", "--no-test", "--data", "data", "--dry-run")
    assert dry.exit_code == 0 and "dataset=data@" in dry.output, dry.output
    (held / "train.py").write_text("from fsdl_dev import DigitsData\ndata = DigitsData()\n")
    told = [check for check in fsdl_dev.check("train.py", **asked) if check.name == "tags"]
    assert told[0].message.endswith("dataset: filled in by the run, from DigitsData")
    run = ended(hold("train.py"))
    assert run.tags["dataset"] == "Numbers@1f1f1f1f1f1f"


def test_diff_says_where_data_that_differs_came_from(held):
    first, second = ended(hold(tags={"task": "digits"})), ended(hold(tags={"task": "digits"}))
    told = {"digest": "2f" * 32, "splits": {"train": 4}, "sources": {"train": "y.csv"}}
    second.dir.writer("rank0", rank=0).write(Data(name="Numbers", **told))
    (one,) = fsdl_dev.diff(first, second).differences
    assert str(one) == ("data Numbers: 1f1f1f1f1f1f train 3 from x.csv -> 2f2f2f2f2f2f train 4 from y.csv"), (
        one
    )
    warned = fsdl_dev.compare(first, second).warnings
    assert "Numbers has 2 digests" in warned[0], warned


def test_a_change_of_any_module_is_a_change_since_the_last_failure(held):
    (held / "train.py").write_text("import helper\n")
    run = hold("train.py")
    for state in ("starting", "running", "failed"):
        run.dir.set_state(run.dir.writer("worker"), state, "by hand")
    asked = {"on": "held", "no_test": True, "say": None}
    told = lambda: next(one for one in fsdl_dev.check("train.py", **asked) if one.name == "history")
    assert told().verdict == "warn" and "Nothing of this launch has changed" in told().message
    (held / "helper.py").write_text("def gain(x):\n    return 2 * x\n")
    assert told().verdict == "pass" and "Changed since: helper.py" in told().message


def test_data_below_git_that_differs_is_told_once(held):
    (held / ".gitignore").write_text("__pycache__/\n.fsdl/\n")
    one = hold("train.py", data=["data"], args=["--lr", "1"])
    (held / "data" / "x.csv").write_text("1,3\n")
    said = fsdl_dev.diff(one, hold("train.py", data=["data"], args=["--lr", "1"])).verdict
    assert said.startswith("One thing differs: data data (data/x.csv): "), said
    cell = hold(params={"lr": 1, "seed": 2}, data=["data"])
    kinds = {
        (d.kind, d.name) for d in fsdl_dev.diff(one, cell).differences if d.kind in ("parameter", "argument")
    }
    assert kinds == {("parameter", "seed")}, "a script's --lr is the parameter lr"


def test_the_bench_makes_runs_that_the_index_reads(tmp_path):
    spec = spec_from_file_location("bench_records", Path(__file__).parents[2] / "bench" / "bench_records.py")
    bench = module_from_spec(spec)
    spec.loader.exec_module(bench)
    bench.make_store(tmp_path, 3)
    assert RunStore(tmp_path).reindex() == 3


def test_python_takes_a_text_where_it_takes_a_list(held):
    run = hold("train.py", args="--lr '0 1'", data="data", loggers="tensorboard")
    assert run.job.args == ("--lr", "0 1") and run.job.loggers == ("tensorboard",)
    assert [item["name"] for item in run.snapshot.manifest["data"]] == ["data"]
    assert list(fsdl_dev.runs(columns="owner, state").columns) == ["owner", "state"]
    for option, call in {
        "--sort statt": lambda: fsdl_dev.runs(sort="statt"),
        "--columns statt": lambda: fsdl_dev.runs(columns="statt"),
    }.items():
        with pytest.raises(FsdlError) as error:
            call()
        assert error.value.where == option and "Did you mean 'state'?" in error.value.what


def test_a_repetition_without_a_metric_has_nothing_to_compare(held):
    """It has an exit status of its own; one that ended in another way differs."""
    run, again = ended(hold()), ended(hold())
    assert Reproduction(run, [], again).exit_code == 0 and Reproduction(run, [], hold()).exit_code == 0
    failed, too, other = (silent(hold(), state) for state in ("failed", "failed", "succeeded"))
    same, differs = Reproduction(failed, [], too), Reproduction(failed, [], other)
    assert same.exit_code == 5 and not same.ok and "nothing to compare" in same.to_text()
    assert f"failed as {failed.words} did" in same._repr_html_() and same.to_dict()["metrics"] == []
    assert differs.exit_code == 1 and f"succeeded, where {failed.words} failed" in differs.to_text()


def silent(run, state: str):
    """The run, ended without a metric."""
    for one in ("starting", "running", state):
        run.dir.set_state(run.dir.writer("worker"), one, "by hand")
    return run
