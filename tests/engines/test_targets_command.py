"""`fsdl targets`: places are listed, tested through every step of a real launch behind a real sshd, named by
answers or options, shown and forgotten.
"""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from following import until

from fsdl_dev.cli.main import main
from fsdl_dev.cli.target_test import STEPS, check_target
from fsdl_dev.core.rundir import list_run_ids
from fsdl_dev.core.settings import find_project
from fsdl_dev.engines import listing as targetlist
from fsdl_dev.engines import target as registry
from fsdl_dev.engines.target import Look, register_kind

START = '# our project\n[project]\nname = "lm"  # short\n\n[tool.fsdl_dev]\nrequired_tags = []\n'


@pytest.fixture
def desk(tmp_path, monkeypatch) -> Path:
    """A project's folder, in which the commands are given; the person has neither configuration nor hosts."""
    folder = tmp_path / "a prøject"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(START)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("FSDL_STORE")
    monkeypatch.setenv("FSDL_CONFIG", str(tmp_path / "person" / "config.toml"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("KUBECONFIG", "RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    return folder


def fsdl(*words: str, code: int = 0, answers: str | None = None) -> str:
    """Give a command; what it printed on both streams."""
    done = CliRunner().invoke(main, list(words), input=answers)
    assert done.exit_code == code, (
        f"fsdl {' '.join(words)}: {done.exit_code}\n{done.output}\n{done.exception!r}"
    )
    return done.output


def table(folder: Path, name: str) -> dict:
    return tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["fsdl_dev"]["targets"][name]


def test_add_by_options_show_and_remove(desk):
    said = fsdl(
        "targets",
        "add",
        "lab",
        "--kind",
        "slurm",
        "--host",
        "login",
        "--partition",
        "gpu",
        "--account=team",
        "--requeue=false",
        "--array-limit",
        "8",
        "--setup",
        "module load cuda",
        "--data",
        "data/x=/datasets/x",
        "--default",
    )
    assert "[tool.fsdl_dev.targets.lab]" in said and "next: fsdl targets test lab" in said
    assert table(desk, "lab") == {
        "kind": "slurm",
        "host": "login",
        "partition": "gpu",
        "account": "team",
        "requeue": False,
        "array_limit": 8,
        "setup": ["module load cuda"],
        "data": {"data/x": "/datasets/x"},
    }
    text = (desk / "pyproject.toml").read_text()
    assert "# our project" in text and "# short" in text and find_project(desk).config["target"] == "lab"
    shown = fsdl("targets", "show", "lab")
    assert (
        'partition = "gpu"' in shown
        and "pyproject.toml" in shown
        and "have their defaults" in shown
        and "qos" not in shown.replace("fsdl targets show lab --all", "")
    )
    every = json.loads(fsdl("targets", "show", "lab", "--json"))
    assert every["fields"]["partition"]["from"].endswith("pyproject.toml") and every["fields"]["qos"] == {
        "value": None,
        "from": "default",
    }
    assert "what it shows" not in shown and "partition" in fsdl("targets", "show", "slurm")
    assert "already" in fsdl("targets", "add", "lab", "--kind", "ssh", "--host", "x", code=2)
    fsdl("targets", "add", "lab", "--kind", "ssh", "--host", "box", "--replace")
    assert table(desk, "lab") == {"kind": "ssh", "host": "box"}
    fsdl("targets", "remove", "lab")
    assert "lab" not in find_project(desk).config.get("targets", {}) and "no target 'lab'" in fsdl(
        "targets", "remove", "lab", code=4
    )


def test_add_for_the_person(desk, tmp_path):
    fsdl("targets", "add", "box", "--user", "--kind", "ssh", "--host", "gpu-box")
    assert tomllib.loads((tmp_path / "person" / "config.toml").read_text()) == {
        "targets": {"box": {"kind": "ssh", "host": "gpu-box"}}
    }
    assert (desk / "pyproject.toml").read_text() == START and str(tmp_path / "person") in fsdl(
        "targets", "show", "box"
    )
    fsdl("targets", "remove", "box")
    assert "box" not in (tmp_path / "person" / "config.toml").read_text()


@pytest.mark.parametrize("words, texts", [
    (("add", "x", "--kind", "slrum"), ("no kind of target 'slrum'", "Did you mean 'slurm'")),
    (("add", "x", "--kind", "slurm", "--partion", "gpu"),
        ("no field 'partion'", "Did you mean 'partition'", "fsdl targets show slurm")),
    (("add", "x", "--kind", "slurm", "--partition"), ("--partition has no value",)),
    (("add", "x", "--kind", "slurm", "--array-limit", "many"), ("array_limit has to be a whole number", "many")),
    (("add", "x"), ("Which kind", "--kind kubernetes | local")),
    (("add", "--kind", "ssh"), ("Missing argument", "NAME")),
    (("add", "--host", "x", "--kind", "ssh"), ("Which name", "fsdl targets add box --kind ssh")),
    (("show", "labb"), ("no target 'labb'", "fsdl targets add labb")),
])  # fmt: skip
def test_what_people_get_wrong(desk, words, texts):
    done = CliRunner().invoke(main, ["targets", *words])
    assert done.exit_code in (2, 4) and all(text in done.output for text in texts), done.output
    assert (desk / "pyproject.toml").read_text() == START


@pytest.mark.parametrize("text, words, texts", [
    ('[tool.fsdl_dev.target.box]\nkind = "ssh"\nhost = "x"\n', ("launch", "train.py"),
        ("places are named under `targets`", "fix:   [tool.fsdl_dev.targets.box]")),
    ('[tool.fsdl_dev.target.box]\nkind = "ssh"\nhost = "x"\n', ("targets",), ("places are named under `targets`",)),
    ('[tool.fsdl_dev]\ntarget = "bxo"\n[tool.fsdl_dev.targets.box]\nkind = "ssh"\nhost = "x"\n',
        ("launch", "train.py"), ("Did you mean 'box'", "where: target under [tool.fsdl_dev]")),
    ("", ("launch", "train.py", "--on", "box"), ("no target 'box'", "fsdl targets add box")),
])  # fmt: skip
def test_what_people_write_wrong(desk, text, words, texts):
    (desk / "pyproject.toml").write_text(text)
    (desk / "train.py").write_text("print('training')\n")
    done = CliRunner().invoke(main, list(words))
    assert isinstance(done.exception, SystemExit) and all(text in done.output for text in texts), (
        done.output,
        done.exception,
    )


COMMENTED = (
    START
    + """
# the box under the desk
[tool.fsdl_dev.targets.box]
kind = "ssh"
host = "box"
# host = "old-box"

# ---- the cluster; ask Ann before you use the partition big
[tool.fsdl_dev.targets.lab]
kind = "slurm"
partition = "gpu"

[tool.fsdl_dev.targets.lab.data]
"data/x" = "/datasets/x"
# nothing but tables below

# the end
"""
)


def test_replace_and_remove_keep_what_others_wrote(desk):
    """Comments above the next table are the next table's; a table that is replaced stays in its place."""
    (desk / "pyproject.toml").write_text(COMMENTED)
    fsdl("targets", "add", "box", "--kind", "ssh", "--host", "new-box", "--replace")
    text = (desk / "pyproject.toml").read_text()
    assert text == COMMENTED.replace('host = "box"', 'host = "new-box"')
    fsdl("targets", "remove", "box")
    text = (desk / "pyproject.toml").read_text()
    assert (
        "new-box" not in text
        and "# ---- the cluster; ask Ann before you use the partition big\n[tool.fsdl_dev.targets.lab]"
        in text
        and "# the box under the desk" in text
    )
    fsdl("targets", "remove", "lab")
    assert "# ---- the cluster" in (desk / "pyproject.toml").read_text() and (
        desk / "pyproject.toml"
    ).read_text().endswith("\n# the end\n")
    (desk / "pyproject.toml").write_text(
        '[tool.fsdl_dev.targets.a]\nkind = "ssh"\nhost = "a"\n# of b\n[tool.fsdl_dev.targets.b]\nkind ='
        ' "ssh"\nhost = "b"\n'
    )
    fsdl("targets", "remove", "a")
    assert (
        desk / "pyproject.toml"
    ).read_text() == '# of b\n[tool.fsdl_dev.targets.b]\nkind = "ssh"\nhost = "b"\n'


def test_a_configuration_that_is_a_link_stays_one(desk, tmp_path):
    kept, own = tmp_path / "dotfiles" / "fsdl.toml", tmp_path / "person" / "config.toml"
    kept.parent.mkdir()
    own.parent.mkdir()
    kept.write_text("# mine\n")
    own.symlink_to(kept)
    fsdl("targets", "add", "box", "--user", "--kind", "ssh", "--host", "gpu-box")
    assert own.is_symlink() and kept.read_text().startswith("# mine\n") and "gpu-box" in kept.read_text()


def test_a_place_of_ones_own_is_no_default_of_the_project(desk, tmp_path):
    said = fsdl("targets", "add", "box", "--user", "--default", "--kind", "ssh", "--host", "gpu-box", code=2)
    assert (
        "--on NAME" in said
        and (desk / "pyproject.toml").read_text() == START
        and not (tmp_path / "person" / "config.toml").exists()
    )


def test_one_bad_table_stops_only_what_uses_it(desk, tmp_path):
    (desk / "pyproject.toml").write_text(
        START + '[tool.fsdl_dev.targets.bad]\nhost = "x"\n[tool.fsdl_dev.targets.worse]\nkind ='
        ' 3\n[tool.fsdl_dev.targets.good]\nkind = "test"\n'
    )
    (desk / "train.py").write_text("print('training')\n")
    said = fsdl("targets")
    assert "✔ good" in said and "✘ bad" in said and "The target 'bad' does not say what kind it is." in said
    fsdl("launch", "train.py", "--on", "good", "--dry-run", "--no-test")
    for words in (
        ("targets", "show", "bad"),
        ("targets", "test", "worse"),
        ("launch", "train.py", "--on", "bad"),
        ("launch", "train.py", "--on", "bad", "--set", "host=y"),
        ("targets", "consent", "bad"),
    ):
        done = CliRunner().invoke(main, list(words))
        assert isinstance(done.exception, SystemExit) and "does not say what kind it is" in done.output, (
            words,
            done.output,
            done.exception,
        )
    assert "good: test" in fsdl("targets", "show", "good")
    fsdl("targets", "remove", "good")
    fsdl("targets", "remove", "bad")
    assert "bad" not in (desk / "pyproject.toml").read_text()


def test_files_that_cannot_be_read_are_said(desk, tmp_path):
    own = tmp_path / "person" / "config.toml"
    own.parent.mkdir()
    (desk / "train.py").write_text("print('training')\n")
    own.write_bytes('[targets.box]\nkind = "ssh"\nhost = "b\u00f6x"\n'.encode("latin-1"))
    for words in (
        ("targets",),
        ("targets", "add", "a", "--user", "--kind", "ssh", "--host", "x"),
        ("launch", "train.py"),
    ):
        done = CliRunner().invoke(main, list(words))
        assert isinstance(done.exception, SystemExit) and "config.toml cannot be read" in done.output, (
            words,
            done.output,
            done.exception,
        )
    own.unlink()
    (desk / "pyproject.toml").write_text('[tool.fsdl_dev]\ntargets = "x"\n')
    for words in (
        ("targets",),
        ("targets", "add", "a", "--kind", "ssh", "--host", "x"),
        ("targets", "remove", "x"),
        ("targets", "show", "x"),
        ("launch", "train.py"),
    ):
        done = CliRunner().invoke(main, list(words))
        assert isinstance(done.exception, SystemExit) and "not 'x'" in done.output, (
            words,
            done.output,
            done.exception,
        )
    (desk / "pyproject.toml").write_bytes("# gr\u00fc\u00dfe\n".encode("latin-1"))
    done = CliRunner().invoke(main, ["targets"])
    assert isinstance(done.exception, SystemExit) and "pyproject.toml is not valid TOML" in done.output


def test_lists_and_tables_as_a_person_writes_them(desk):
    fsdl("targets", "add", "rented", "--kind", "sky", "--infra", "aws/us-east-1,gcp", "--storage", "s3://b/x")
    assert table(desk, "rented")["infra"] == ["aws/us-east-1", "gcp"]
    pod = ("targets", "add", "pods", "--kind", "kubernetes", "--image", "x", "--storage", "pvc:runs")
    fsdl(*pod, "--set", 'env_secrets={KEY = "team/key"}')
    assert table(desk, "pods")["env_secrets"] == {"KEY": "team/key"}
    said = fsdl(*pod, "--replace", "--set", "env_secrets={KEY = }", code=2)
    assert "{KEY = } is no table" in said and """--set 'env_secrets={NAME = "value"}'""" in said


def test_fields_that_are_called_as_options(desk):
    assert "--set user=1000" in fsdl(
        "targets", "add", "k", "--kind", "kubernetes", "--image", "x", "--user", "1000", code=2
    )
    fsdl(
        "targets",
        "add",
        "k",
        "--kind",
        "kubernetes",
        "--image",
        "registry.example/x:1",
        "--set",
        "user=1000:1000",
        "--storage",
        "pvc:runs",
    )
    assert table(desk, "k") == {
        "kind": "kubernetes",
        "image": "registry.example/x:1",
        "storage": "pvc:runs",
        "user": "1000:1000",
    }


def test_a_kind_that_says_nothing_of_fields(desk):
    """A plug-in whose author has left them out: the commands work, and no traceback is shown."""
    register_kind("bare")(
        type(
            "Bare",
            (registry.Target,),
            {"__init__": lambda self, project, name, fields: None, "look": lambda self: Look(True)},
        )
    )
    try:
        fsdl("targets", "add", "b", "--kind", "bare")
        assert (
            "b: bare" in fsdl("targets", "show", "b")
            and "✔ b" in fsdl("targets")
            and table(desk, "b") == {"kind": "bare"}
        )
    finally:
        registry._KINDS.pop("bare")


def test_ctrl_c_in_a_test_leaves_no_job(desk):
    (desk / "pyproject.toml").write_text(START + '[tool.fsdl_dev.targets.here]\nkind = "test"\n')
    runs, steps = [], []

    def interrupt(step):
        steps.append(step.line())
        if step.name == "events":
            runs.extend(list_run_ids(find_project(desk).store))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check_target(find_project(desk), "here", told=interrupt)
    assert len(runs) == 1 and list_run_ids(find_project(desk).store) == [], steps
    until(
        lambda: runs[0] not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout,
        "a process of it is left",
    )


def test_list_names_who_answers_and_who_does_not(desk, own_sshd, monkeypatch):
    (desk / "pyproject.toml").write_text(
        START
        + f'target = "box"\n[tool.fsdl_dev.targets.box]\nkind = "ssh"\nhost = "{own_sshd.host}"\nstorage ='
        f' "{desk.parent}/far"\n[tool.fsdl_dev.targets.gone]\nkind = "ssh"\nhost ='
        ' "127.0.0.1:9"\n[tool.fsdl_dev.targets.odd]\nkind = "ssh"\nhost = "x"\npartition = "gpu"\n'
    )
    said = fsdl("targets", "--timeout", "120s")
    assert (
        "✔ box   *  ssh" in said and "✘ gone" in said and "✔ local" in said and "no field 'partition'" in said
    )
    rows = {row["name"]: row for row in json.loads(fsdl("targets", "--timeout", "120s", "--json"))}
    assert (
        rows["box"]["reachable"]
        and rows["box"]["default"]
        and not rows["gone"]["reachable"]
        and rows["local"]["reachable"]
    )
    ask = targetlist.ask_targets
    monkeypatch.setattr(
        targetlist, "ask_targets", lambda project, rows, seconds: ask(project, rows, 120.0)
    )  # a busy machine may need more than ten
    found = {
        check["name"]: check for check in json.loads(CliRunner().invoke(main, ["doctor", "--json"]).output)
    }
    assert found["target box"]["verdict"] == "pass" and found["target gone"]["verdict"] == "warn"


@pytest.mark.slow
def test_test_goes_through_every_step_and_leaves_nothing(desk, own_sshd):
    (desk / "pyproject.toml").write_text(
        START
        + f'[tool.fsdl_dev.targets.box]\nkind = "ssh"\nhost = "{own_sshd.host}"\nstorage = "{desk.parent}/far'
        f' störage"\npython = "{sys.executable}"\n'
    )
    said = fsdl("targets", "test", "box")
    assert "box works" in said and all(f"✔ {step}" in said for step in STEPS if step != "environment"), said
    assert (
        list_run_ids(find_project(desk).store) == []
        and os.listdir(desk.parent / "far störage" / "runs") == []
    )


def test_test_says_which_step_fails(desk, own_sshd):
    far = desk.parent / "a file"
    far.write_text("")
    (desk / "pyproject.toml").write_text(
        START
        + f'[tool.fsdl_dev.targets.full]\nkind = "ssh"\nhost = "{own_sshd.host}"\nstorage = "{far}/runs"\n'
        '[tool.fsdl_dev.targets.gone]\nkind = "ssh"\nhost = "nobody.invalid"\n'
    )
    steps = {step["name"]: step for step in json.loads(fsdl("targets", "test", "gone", "--json", code=3))}
    assert (
        steps["settings"]["verdict"] == "pass"
        and steps["reach"]["verdict"] == "fail"
        and steps["reach"]["fix"]
        and steps["submit"]["verdict"] == "skip"
    )
    said = fsdl("targets", "test", "full", code=3)
    assert "full: storage failed" in said or "full: reach failed" in said, said
    assert "Traceback" not in said and list_run_ids(find_project(desk).store) == []


@pytest.mark.slow
def test_a_machine_that_never_answered_is_given_up_soon(desk, own_sshd):
    """It is off, or misspelt: nobody waits minutes, and the list says what ssh says instead of that it took too
    long.
    """
    own_sshd.stop()
    (desk / "pyproject.toml").write_text(
        START + f'[tool.fsdl_dev.targets.box]\nkind = "ssh"\nhost = "{own_sshd.host}"\n'
    )
    (desk / "train.py").write_text("print('training')\n")

    def command(*words: str, seconds: float) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-c", "from fsdl_dev.cli.main import main; main()", *words],
            cwd=desk,
            text=True,
            capture_output=True,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
        )

    assert "no SSH server answers there" in command("targets", seconds=120).stdout
    launched = command("launch", "train.py", "--on", "box", seconds=150)  # it took three minutes
    assert (
        launched.returncode == 2
        and "no SSH server answers there" in launched.stderr
        and list_run_ids(find_project(desk).store) == []
    )
