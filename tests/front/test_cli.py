"""The command `fsdl` as a person or a program uses it: every command, every exit code, and what it says when it
cannot.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import commit_all, write_notebook

import fsdl_dev
from fsdl_dev.core.rundir import list_run_ids

PATIENCE = 300  # seconds; a test that needs more has failed
FSDL = [sys.executable, "-c", "import sys; from fsdl_dev.cli.main import main; sys.argv[0] = 'fsdl'; main()"]
COMMANDS = (
    "launch",
    "check",
    "plan",
    "gpus",
    "policy",
    "runs",
    "show",
    "queue",
    "logs",
    "attach",
    "tag",
    "note",
    "open",
    "cancel",
    "fetch",
    "rm",
    "gc",
    "shell",
    "profile",
    "compare",
    "diff",
    "lineage",
    "reproduce",
    "package",
    "pictures",
    "costs",
    "budgets",
    "capacity",
    "promote",
    "rollback",
    "models",
    "export",
    "verify",
    "mirror",
    "share",
    "board",
    "app",
    "feedback",
    "drift",
    "retrain",
    "new",
    "init",
    "adopt",
    "import",
    "git-setup",
    "numbers",
    "doctor",
    "env",
    "targets",
    "completion",
    "help",
    "skill",
    "mcp",
)
BELOW_TARGETS = tuple(f"targets {verb}" for verb in ("add", "consent", "remove", "show", "test"))
NOTEBOOKS = {
    "00_train.ipynb": [
        "# Train\n\n> A small project.",
        "#| default_exp train",
        (
            "#| export\ndef train(steps: int = 3, lr: float = 0.1) -> float:\n    import fsdl_dev\n    for"
            " step in range(steps):\n        fsdl_dev.log(step=step, loss=lr / (step + 1))\n       "
            " print('step', step)\n    return steps * lr"
        ),
        "assert train(2) == 0.2",
        "## Study of the rate",
        (
            "%%fsdl_launch --param lr=0.5 --tag task=toy --on test\n#| eval: false\nprint('lr is', lr, 'and"
            " the end is', train(2, lr))"
        ),
    ],
    "study.ipynb": ["# Study", "n = 2; half = n / 2", "print('n is', n, 'and its half', half)"],
}
SCRIPTS = {
    "train.py": "import sys\nprint('arguments', sys.argv[1:])\n",
    "fails.py": "print('so far so good')\nraise ValueError('a bad value')\n",
    "long.py": (
        "import time\nfor tick in range(100000):\n    print('tick', tick, flush=True)\n    time.sleep(0.05)\n"
    ),
    "broken.py": "def broken(:\n",
}


class Folder:
    "A project's folder, and what `fsdl` says in it."

    def __init__(self, root: Path):
        self.root = root

    def fsdl(self, *words: str, code: int = 0, **environment: str) -> str:
        "Run it; what it printed to both, the exit code checked."
        done = subprocess.run(
            [*FSDL, *words],
            cwd=self.root,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        self.out, self.err = done.stdout, done.stderr
        assert done.returncode == code, (
            f"fsdl {' '.join(words)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        )
        assert "Traceback" not in done.stderr or "a bad value" in done.stdout, done.stderr
        return done.stdout + done.stderr

    def json(self, *words: str, code: int = 0):
        self.fsdl(*words, "--json", code=code)
        return json.loads(self.out)

    def start(self, *words: str) -> subprocess.Popen:
        return subprocess.Popen(
            [*FSDL, *words],
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def runs(self) -> int:
        return len(list_run_ids(Path(os.environ["FSDL_STORE"])))


@pytest.fixture
def folder(make_project, tmp_path):
    root = make_project(notebooks=NOTEBOOKS, folder=tmp_path / "mon projet é", git=False)
    for name, text in SCRIPTS.items():
        (root / name).write_text(text)
    commit_all(root)
    return Folder(root)


def interrupt_after(process: subprocess.Popen, word: str) -> tuple[str, str]:
    "Wait for a word on its output, then Ctrl-C; the rest of what it says."
    seen = ""
    while word not in seen:
        line = process.stdout.readline()
        assert line, f"ended before {word!r}: {seen}{process.stderr.read()}"
        seen += line
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    return seen + out, err


# --- what can be launched -----------------------------------------------------------------------------------


def test_each_kind_is_launched_followed_and_told(folder):
    said = folder.fsdl(
        "launch",
        "train.py",
        "--on",
        "test",
        "--tag",
        "task=x",
        "--",
        "--lr",
        "1e-3",
        "--on",
        "mars",
        "two words",
    )
    assert (
        folder.out == "arguments ['--lr', '1e-3', '--on', 'mars', 'two words']\n"
        and "✔" in folder.err
        and "task=x" in said
    )

    told = folder.json(
        "launch", "smallproj.train:train", "--param", "steps=4", "--on", "test", "--name", "a name"
    )
    assert (told["state"], told["kind"], told["name"], told["params"], told["result"]) == (
        "succeeded",
        "function",
        "a name",
        {"steps": 4},
        0.4,
    )
    assert (
        told["metrics"]["loss"] == pytest.approx(0.025) and "step 3" in folder.err
    )  # the logs go to stderr, JSON stays readable

    folder.fsdl("launch", "nbs/study.ipynb", "--param", "n=6", "--on", "test")
    assert folder.out == "n is 6 and its half 3.0\n"
    assert folder.json("fetch", "last", "brought back") == [str(Path("brought back") / "executed.ipynb")]
    assert "n is 6" in (folder.root / "brought back" / "executed.ipynb").read_text()

    assert "launch cells there: cell 4 “Study of the rate”" in folder.fsdl(
        "launch", "nbs/00_train.ipynb", "--cell", "6", code=4
    )  # the file's sixth, its fourth of code
    folder.fsdl("launch", "nbs/00_train.ipynb", "--cell", "study", "--param", "lr=2", "--on", "test")
    assert folder.out.endswith("lr is 2 and the end is 4\n")
    told = folder.json("show")
    assert told["params"] == {"lr": 2} and told["tags"]["task"] == "toy" and told["kind"] == "cell"

    rows = folder.json("runs")
    assert [row["kind"] for row in rows] == ["cell", "notebook", "function", "script"] and all(
        row["state"] == "succeeded" for row in rows
    )
    assert [row["kind"] for row in folder.json("runs", "--tag", "task=x")] == ["script"]
    assert folder.json("runs", "--state", "failed") == [] and len(folder.json("runs", "-n", "2")) == 2
    table = folder.fsdl("runs")
    assert all(row["words"] in table for row in rows)


@pytest.mark.slow
def test_records_are_asked_for_remembered_and_changed(folder):
    (folder.root / "pyproject.toml").write_text(
        '[tool.fsdl_dev.fields.task]\nrequired = true\nvalues = ["toy", "text"]\n'
    )
    assert "add --tag task=toy" in folder.fsdl("launch", "fails.py", "--on", "test", code=3)
    assert "--tag task=text" in folder.fsdl("launch", "fails.py", "--on", "test", "--tag", "task=tex", code=3)
    assert folder.runs() == 0
    folder.fsdl("launch", "fails.py", "--on", "test", "--tag", "task=text", code=1)

    def history() -> dict:
        checks = folder.json("check", "fails.py", "--on", "test", "--tag", "task=text")
        return next(check for check in checks if check["name"] == "history")

    assert history()["verdict"] == "warn" and "fails.py, line 2" in history()["message"]
    (folder.root / "fails.py").write_text("print('well')\n")
    assert history()["verdict"] == "pass" and "Changed since: fails.py" in history()["message"]
    folder.fsdl("launch", "fails.py", "--on", "test", "--tag", "task=text")
    assert "succeeded since, with what is launched now" in history()["message"]
    (folder.root / "fails.py").write_text("print('otherwise')\n")
    assert "succeeded after a change of fails.py." in history()["message"]

    assert folder.fsdl("tag", "last", "status=baseline", "team=vision").split()[-3:] == [
        "status=baseline",
        "task=text",
        "team=vision",
    ]
    assert "--tag" not in folder.fsdl("tag", "last", "status=baselin", code=2)
    folder.fsdl("note", "last", "the labels", "were wrong")
    assert "the labels were wrong" in folder.fsdl("show", "last")
    (good,) = folder.json("runs", "status = baseline and team = vision and since = 1d")
    (bad,) = folder.json("runs", "failure", "=", "code", "--sort", "-seconds")
    assert good["state"] == "succeeded" and bad["cell"] == "fails.py, line 2" and bad["id"] != good["id"]
    wrong = folder.fsdl("runs", "state = failed and tem = vision", code=2)
    assert "Did you mean 'team'" in wrong and "\n                       ^" in wrong
    folder.fsdl("runs", "--reindex", "team", "--csv", "--columns", "status")
    assert folder.out.splitlines()[1].endswith(",succeeded,baseline")


BUSY_MACHINE = """def busy_machine(place):
    import logging, os, sys, threading, time, zmq
    from ipykernel.kernelapp import IPKernelApp
    logging.getLogger().addHandler(logging.FileHandler(place, delay=True))
    stream, flush, thread = sys.stdout, sys.stdout.flush, IPKernelApp.instance().control_thread
    stop = thread.stop
    def late_flush():
        if threading.current_thread() is not thread:
            return flush()
        while sys.stdout is stream:
            time.sleep(0.01)
        open(place + ".reached", "w").close()
        raise zmq.ZMQError(zmq.ENOTSOCK)
    def late_stop():
        end = time.monotonic() + 60
        while not os.path.exists(place + ".reached") and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(1)
        stop()
    stream.flush, thread.stop = late_flush, late_stop
busy_machine("PLACE")"""


def test_a_kernel_that_ends_says_nothing_of_its_own(folder, tmp_path):
    """Its control thread flushes while its sockets are being closed: ipykernel's own race, as a busy machine
    decides it.
    """
    place = tmp_path / "kernel.log"
    write_notebook(
        folder.root / "late.ipynb", ["# Late", BUSY_MACHINE.replace("PLACE", str(place)), "print('ran')"]
    )
    folder.fsdl("launch", "late.ipynb", "--on", "test")
    assert folder.out == "ran\n" and Path(f"{place}.reached").exists() and not place.exists()


def test_a_failing_script_says_where(folder):
    said = folder.fsdl("launch", "fails.py", "--on", "test", code=1)
    assert "so far so good" in folder.out and "fails.py, line 2" in said and "correct fails.py" in said
    assert "so far so good" in folder.fsdl("logs") and "ValueError: a bad value" in folder.fsdl(
        "logs", "last", "--rank", "0"
    )
    assert folder.json("show", "last", "--exit-code", code=1)["failure"].startswith(
        "The job failed: ValueError: a bad value"
    )
    folder.fsdl("attach", code=1)
    assert "no checkpoint, curve or executed notebook" in folder.fsdl("fetch", code=4)
    assert "has no log of rank 7" in folder.fsdl("logs", "--rank", "7", code=4)
    before = folder.runs()
    assert (
        "left no checkpoint" in folder.fsdl("launch", "--resume", "last", "--on", "test", code=2)
        and folder.runs() == before
    )


# --- Ctrl-C, logs -f, attach, cancel ------------------------------------------------------------------------


def test_control_c_detaches_and_the_run_goes_on(folder):
    launched = folder.start("launch", "long.py", "--on", "test")
    _, said = interrupt_after(launched, "tick 3")
    words = folder.json("show")["words"]
    assert launched.returncode == 130
    assert (
        "Detached. The run goes on." in said
        and f"fsdl attach {words}" in said
        and f"fsdl cancel {words}" in said
    )
    for command in (["logs", "-f", words], ["attach", words]):
        following = folder.start(*command)
        seen, said = interrupt_after(following, "tick 5")
        assert following.returncode == 130 and "tick 0\n" in seen and "Traceback" not in said, said
    assert folder.json("show", words)["state"] == "running"

    followed = folder.start("logs", "-f", words)
    assert followed.stdout.readline() == "tick 0\n"
    assert f"{words}: cancelled" in folder.fsdl("cancel", words)
    followed.communicate(timeout=PATIENCE)
    assert followed.returncode == 0
    assert "has ended already: cancelled" in folder.fsdl("cancel", words)
    folder.fsdl("attach", words, code=1)
    folder.fsdl("show", words, "--exit-code", code=1)
    assert "cancelled" in folder.fsdl("show", words, "--watch"), "a run that is over is shown once"
    folder.fsdl("rm", words, code=1)  # nobody answers the question
    assert words in folder.fsdl("rm", words, "--yes") and folder.runs() == 0


# Ctrl-C while the command loads: when a module of it is looked for
EARLY = """
import os, signal, sys
sys.argv = ["fsdl", "runs"]

class Stop:
    def find_spec(self, name, *_):
        if name == "click.core":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Stop())
from fsdl_dev.cli.start import main
main()
"""
# two Ctrl-C at the end of one function of a launch
TWICE = """
import importlib, os, signal, sys
_, module, name, *words = sys.argv
sys.argv = ["fsdl", *words]
from fsdl_dev.cli.start import main
module = importlib.import_module(module)
real = getattr(module, name)

def stopped(*given, **named):
    done = real(*given, **named)
    try:
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        os.kill(os.getpid(), signal.SIGINT)
    return done

setattr(module, name, stopped)
main()
"""


def test_control_c_while_the_command_loads_prints_nothing(folder):
    done = subprocess.run([sys.executable, "-c", EARLY], cwd=folder.root, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize(
    ("module", "name", "left"),
    [
        ("fsdl_dev.launcher.gates", "take_snapshot", 0),
        ("fsdl_dev.core.rundir", "write_json", 0),
        ("fsdl_dev.engines.local", "_start_worker", 1),
    ],
)
def test_two_control_c_in_a_launch_leave_no_half_run(folder, module, name, left):
    """No traceback, and no run directory; where the target may have the run already, its name is said, and the command
    that stops it.
    """
    words = [sys.executable, "-c", TWICE, module, name, "launch", "long.py", "--on", "test", "--detach"]
    done = subprocess.run(words, cwd=folder.root, capture_output=True, text=True)
    assert done.returncode == 130 and "Traceback" not in done.stderr, done.stderr
    assert "Interrupted" in done.stderr and folder.runs() == left
    if not left:
        assert "Nothing was launched." in done.stderr and not list(
            Path(os.environ["FSDL_STORE"]).glob("runs/*")
        )
        return
    run = folder.json("show")["words"]
    assert f"fsdl cancel {run}" in done.stderr
    folder.fsdl("cancel", run)


def test_detached_and_cancelled_without_waiting(folder):
    folder.fsdl("launch", "long.py", "--on", "test", "--detach")
    name = folder.out.strip()  # progress goes to the other stream
    told = folder.json("show", name[:18])
    assert told["id"] == name and told["state"] in ("queued", "starting", "running")
    assert f"fsdl cancel {told['words']}" in folder.fsdl("cancel", code=2), "no question without a terminal"
    assert f"fsdl cancel {told['words']}, then fsdl rm" in folder.fsdl("rm", name, "--yes", code=2)
    folder.fsdl("cancel", name, "--no-wait")
    end = time.monotonic() + PATIENCE
    while folder.json("show", told["words"])["state"] != "cancelled":
        assert time.monotonic() < end
    assert folder.json("launch", "train.py", "--on", "test", "-d")["kind"] == "script"
    folder.fsdl("attach")


def test_dry_run_asks_no_cluster(folder):
    table = f'[tool.fsdl_dev.targets.lab]\nkind = "slurm"\nstorage = "{folder.root.parent}/lab"\n'
    (folder.root / "pyproject.toml").write_text(table)
    command = ("launch", "train.py", "--on", "lab", "--procs", "2", "--no-test", "--dry-run")
    folder.fsdl(*command, PATH="/usr/bin:/bin", SLURM_CONF="/dev/null")
    assert "#SBATCH --job-name" in folder.out and "--gres=gpu:2 " in folder.out and folder.runs() == 0


# --- check, doctor, init ------------------------------------------------------------------------------------


def test_check_looks_and_launches_nothing(folder):
    checks = folder.json("check", "smallproj.train:train")
    assert {"export", "import", "tags", "secrets", "tests"} <= {check["name"] for check in checks} and {
        check["verdict"] for check in checks
    } == {"pass"}
    path = folder.root / "nbs" / "00_train.ipynb"
    path.write_text(path.read_text().replace("== 0.2", "== 0.3"))
    said = folder.fsdl("check", "nbs/00_train.ipynb", "--cell", "study", code=3)
    assert "✗ tests" in said and "00_train.ipynb" in said
    assert "✗ tests" in folder.fsdl("launch", "nbs/00_train.ipynb", "--cell", "study", "--on", "test", code=3)
    assert "--no-test" in folder.fsdl("check", "nbs/00_train.ipynb", "--cell", "study", "--no-test")
    assert folder.runs() == 0
    told = folder.json("launch", "nbs/00_train.ipynb", "--cell", "study", "--on", "test", "--no-test")
    assert told["state"] == "succeeded" and "--no-test" in json.dumps(
        json.loads((Path(told["path"]) / "job.json").read_text())["launch"]["checks"]
    )
    (folder.root / "pyproject.toml").write_text("[tool.fsdl_dev]\nrequired_tags = ['task', 'dataset']\n")
    assert "--tag dataset=" in folder.fsdl("check", "train.py", "--tag", "task=x", code=3)
    assert "IN_TEST" in folder.fsdl(
        "launch", "train.py", "--tag", "task=x", "--tag", "dataset=y", code=3, IN_TEST="1"
    )


def test_doctor(folder):
    checks = folder.json("doctor")
    assert [check["name"] for check in checks] == [
        "python",
        "nbdev",
        "torch",
        "git",
        "store",
        "slots",
        "jupyter",
        "wandb",
    ]
    assert "✓ git: commit" in folder.fsdl("doctor")
    assert "fix:   export FSDL_STORE=" in folder.fsdl("doctor", code=3, FSDL_STORE="/dev/null/store")


def test_init_makes_a_project_that_launches(tmp_path):
    here = Folder(tmp_path)
    somebody = {f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    here.fsdl("init", "mein Projekt", **somebody)
    made = tmp_path / "mein Projekt"
    written = sorted(Path(line).relative_to(made).as_posix() for line in here.out.split("\n") if line)
    assert written == [
        ".github/workflows/test.yml",
        ".gitignore",
        ".vscode/tasks.json",
        "AGENTS.md",
        "Makefile",
        "README.md",
        "environment.yml",
        "mein_projekt/__init__.py",
        "nbs/00_train.ipynb",
        "nbs/_quarto.yml",
        "nbs/index.ipynb",
        "pyproject.toml",
        "requirements/dev.in",
        "requirements/dev.txt",
        "requirements/project.in",
        "requirements/project.txt",
        "settings.ini",
        "tests/test_package.py",
    ]
    assert "jupyter lab 'mein Projekt/nbs/00_train.ipynb'" in here.err
    assert (tmp_path / "mein Projekt" / ".git" / "HEAD").is_file()
    git = ["git", "-C", str(tmp_path / "mein Projekt")]
    assert subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True).stdout == ""
    assert (
        subprocess.run([*git, "log", "--format=%s"], capture_output=True, text=True).stdout == "fsdl init\n"
    )
    assert "nbdev project already" in here.fsdl("init", "mein Projekt", code=2)
    assert "fsdl init . --name project_class" in here.fsdl("init", ".", "--name", "class", code=2)
    inside = Folder(tmp_path / "mein Projekt")
    assert (
        inside.json("launch", "nbs/00_train.ipynb", "--cell", "Train", "--on", "test")["metrics"]["loss"]
        < 1e-6
    )


# --- --help, completion
# ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def help_of():
    "One process asks for the help of every command: their texts, by name."
    code = (
        "import json\nfrom click.testing import CliRunner\nfrom fsdl_dev.cli.main import main\nask = lambda"
        " w: CliRunner().invoke(main, [*w.split(), '--help'], prog_name='fsdl').output\n"
        f"print(json.dumps({{n: ask(n) for n in {(*COMMANDS, *BELOW_TARGETS, '')}}}))"
    )
    return json.loads(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    )


def test_help_of_each_command(help_of, folder):
    assert folder.fsdl("--help").startswith("Usage: fsdl") and fsdl_dev.__version__ in folder.fsdl(
        "--version"
    )
    sections = help_of[""].partition("Launch:\n")[2].partition("Examples:\n")[0].splitlines()
    assert [line.split()[0] for line in sections if line[:2] == "  " != line[1:3]] == list(COMMANDS)
    assert all(len(line) <= 80 for text in help_of.values() for line in text.splitlines())
    for name in COMMANDS:
        assert f"{name} [OPTIONS]" in help_of[name] and len(help_of[name].splitlines()) > 4, help_of[name]
        assert f"  fsdl {name}" in help_of[name] or f"Example: fsdl {name}" in help_of[name], help_of[name]
    for option in (
        "--on",
        "--nodes",
        "--each",
        "--set",
        "--after",
        "--copy-limit",
        "--dry-run",
        "--procs",
        "--param",
        "--tag",
        "--cell",
        "--resume",
        "--wandb",
        "--mlflow",
        "--no-test",
        "--json",
        "--detach",
    ):
        assert option in help_of["launch"]


def test_bash_completes(folder):
    folder.fsdl("launch", "train.py", "--on", "test", "-d")
    words = folder.json("show")["words"]

    def complete(line: str) -> list[str]:
        parts = line.split(" ")
        said = folder.fsdl(_FSDL_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(len(parts) - 1))
        return [entry.partition(",")[2] for entry in said.splitlines()]

    assert complete("fsdl la") == ["launch"]
    assert complete("fsdl launch --on l") == ["local"]
    assert complete("fsdl launch --pr") == ["--procs", "--profile"]
    assert "train.py" in complete("fsdl launch tr") and "nbs/" in complete("fsdl launch nb")
    assert complete(f"fsdl show {words[:-1]}") == [words]
    assert complete("fsdl launch smallproj.train:train --param s") == ["steps="]
    assert complete("fsdl launch nbs/study.ipynb --each ") == ["half=", "n="]
    assert folder.fsdl(_FSDL_COMPLETE="bash_source").count("_FSDL_COMPLETE")
    folder.fsdl("attach")


# --- what people get wrong
# -----------------------------------------------------------------------------------

WRONG = [  # the words, the exit code, what it must say
    (["launch", "trian.py"], 4, ["no file 'trian.py'", "Did you mean 'train.py'?"]),
    (
        ["launch", "mystery"],
        2,
        ["give a script (train.py), -m package.module, a notebook (study.ipynb) or package.module:function"],
    ),
    (["launch"], 2, ["Nothing to launch was named", "fsdl launch train.py"]),
    (["launch", "broken.py"], 2, ["broken.py, line 1", "that line"]),
    (["launch", "smallproj.train:trian"], 4, ["Did you mean 'train'?"]),
    (["launch", "smallproj.trian:train"], 4, ["no module 'smallproj.trian'"]),
    (["launch", "train.py", "--on", "locl"], 4, ["no target 'locl'", "Did you mean 'local'?", "--on local"]),
    (["launch", "train.py", "--procs", "0"], 2, ["at least 1, not 0", "--procs 1"]),
    (["launch", "train.py", "--procs", "999", "--on", "test"], 2, ["999 process slots", "FSDL_SLOTS"]),
    (["launch", "train.py", "--procs", "two"], 2, ["'two' is not a valid integer"]),
    (["launch", "train.py", "--gpus", "-1"], 2, ["gpus must be a whole number of at least 0"]),
    (["launch", "train.py", "--time", "5x"], 2, ["'5x' is not a duration", "--time 30m"]),
    (
        ["launch", "train.py", "--time", "90"],
        2,
        ["90 has no unit", "--time 90m (minutes)", "--time 90s (seconds)"],
    ),
    (["launch", "train.py", "--time", "1:30"], 2, ["hours and minutes", "--time 1h30m", "--time 1m30s"]),
    (
        ["launch", "train.py", "--copy-limit", "5G"],
        2,
        ["1000 or by 1024", "--copy-limit 5GB", "--copy-limit 5GiB"],
    ),
    (
        ["targets", "--timeout", "60"],
        2,
        ["60 has no unit", "--timeout 60m (minutes)", "--timeout 60s (seconds)"],
    ),
    (
        ["launch", "train.py", "--param", "lr=1"],
        2,
        ["A script takes arguments of its own", "fsdl launch train.py -- --lr 1"],
    ),
    (["launch", "train.py", "--tag", "task"], 2, ["--tag name=value"]),
    (["launch", "train.py", "--data", "nowhere", "--on", "test"], 2, ["no data at 'nowhere'"]),
    (["launch", "train.py", "--resume", "nobody", "--on", "test"], 4, ["There are no runs yet"]),
    (
        ["launch", "train.py", "--prcs", "2"],
        2,
        ["No such option '--prcs'", "'--procs'", "train.py -- --prcs"],
    ),
    (
        ["launch", "smallproj.train:train", "--param", "stps=3"],
        2,
        ["does not use a parameter 'stps'", "Did you mean 'steps'?"],
    ),
    (
        ["launch", "smallproj.train:train", "--param", "steps=many"],
        2,
        ["'many' (str)", "takes int", "--param steps=3"],
    ),
    (
        ["launch", "smallproj.train:train", "3"],
        2,
        ["Only a script takes arguments of its own", "--param name=value"],
    ),
    (
        ["launch", "nbs/study.ipynb", "--param", "m=3"],
        2,
        ["does not use a parameter 'm'", "it takes: half, n"],
    ),
    (
        ["launch", "nbs/study.ipynb", "--each", "m=3,4"],
        2,
        ["does not use a parameter 'm'", "where: --each m"],
    ),
    (["launch", "nbs/study.ipynb", "--param", "n=0.5"], 2, ["takes int", "write `n = 2.0` where it is set"]),
    (
        ["launch", "nbs/unreadable.ipynb"],
        2,
        ["Python cannot read this cell", "cell 2", "line 1", "fix cell 2"],
    ),
    (["launch", "nbs/00_train.ipynb", "--cell", "Traim"], 4, ["No launch cell is called 'Traim'"]),
    (
        ["launch", "nbs/00_train.ipynb", "--cell", "study", "--param", "rate=1"],
        3,
        ["The launch cell does not use a parameter 'rate'"],
    ),
    (
        ["launch", "nbs/00_train.ipynb", "--cell", "study", "--param", "lr=fast"],
        3,
        ["'fast' (str)", "the launch cell takes float"],
    ),
    (["show", "nobody"], 4, ["There are no runs yet"]),
    (["runs", "--state", "done"], 2, ["'done' is no state of a run", "succeeded"]),
    (["lauch"], 2, ["Did you mean 'launch'?"]),
]


def test_what_people_get_wrong(folder):
    "One process asks for all of it: each refusal says what, and the way out, and leaves no run."
    write_notebook(folder.root / "nbs" / "unreadable.ipynb", ["x = 1", "def f(:\n    pass"])
    code = (
        "import json, sys\nfrom click.testing import CliRunner\nfrom fsdl_dev.cli.main import main\nanswers ="
        " []\nfor words in json.load(sys.stdin):\n    done = CliRunner().invoke(main, words)\n   "
        " answers.append([done.exit_code, done.output, repr(done.exception)])\nprint(json.dumps(answers))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder.root,
        input=json.dumps([words for words, *_ in WRONG]),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    poor = []
    for (words, code, texts), (was, said, error) in zip(WRONG, json.loads(done.stdout), strict=True):
        missing = [text for text in texts if text not in said]
        if was != code or missing or "Traceback" in said:
            poor.append(
                f"fsdl {' '.join(words)}: {was} instead of {code}, {missing} not said:\n{said}{error}"
            )
    assert not poor, "\n\n".join(poor)
    assert folder.runs() == 0


def test_outside_of_any_project_and_in_no_folder(tmp_path):
    lonely = tmp_path / "lonely"
    lonely.mkdir()
    (lonely / "hello.py").write_text("print('hello')\n")
    here = Folder(lonely)
    assert "hello" in here.fsdl("launch", "hello.py", "--on", "test")
    words = here.json("show")["words"]
    assert f"Did you mean '{words}'?" in here.fsdl("show", words + "x", code=4) and "fsdl runs" in here.err
    command = f"mkdir gone && cd gone && rmdir ../gone && exec {shlex.join([*FSDL, 'runs'])}"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "The current folder is gone" in done.stderr and "cd to" in done.stderr
