"""The SSH target against a real sshd on a machine of its own: what a launch does there, and what it survives."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from following import PATIENCE, events, states, until
from hosts import machines, why_no_namespaces
from neighbours import check_neighbours, lay_out
from ssh_lab import HELLO, TRAIN, UNTIL, Lab, opened_lab, told, until_log, until_state
from tracker_server import TrackerServer

import fsdl_dev
from fsdl_dev.cards.journey import say_contact
from fsdl_dev.core.errors import FsdlError
from fsdl_dev.core.job import Job, LaunchRecord, Resources
from fsdl_dev.core.rundir import create_run_dir, write_json
from fsdl_dev.core.settings import find_project, open_store
from fsdl_dev.core.states import FINAL
from fsdl_dev.engines.target import get_target
from fsdl_dev.engines.transport.ssh import SshShell
from fsdl_dev.launcher.options import parse_line
from fsdl_dev.notebook.magics import LINES
from fsdl_dev.share.mirror import mirror
from fsdl_dev.share.shell import plan_shell
from fsdl_dev.snapshot.take import take_snapshot

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform != "linux" or not Path("/usr/sbin/sshd").exists(), reason="needs Linux with an sshd"
    ),
]
real = pytest.mark.skipif(
    bool(why_no_namespaces()), reason=f"needs a machine of its own: {why_no_namespaces()}"
)


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    with machines(
        tmp_path_factory.mktemp("net"), ["box"], box={"disk": {"/small": "3m", "/medium": "16m"}}
    ) as net:
        yield net


@pytest.fixture
def lab(net, tmp_path, monkeypatch):
    with opened_lab(tmp_path, net, monkeypatch) as here:
        yield here


# --- what a launch does
# -----------------------------------------------------------------------------------------


def test_a_run_from_launch_to_load(lab, net, tmp_path):
    "Output while it runs, checkpoint and curves afterwards; nothing had to be installed there."
    stop = "/var/tmp/enough" if net.real else tmp_path / "enough"
    run = lab.launch(TRAIN, stop, "--größe=1")
    assert until_log(run, "step 3")
    assert run.view.state == "running" and run.status_line().startswith(f"{run.words}  running")
    net["box"].ssh(f"touch {stop}")
    assert run.wait(300, progress=False).state == "succeeded", told(run)
    net["box"].ssh(f"rm {stop}")
    assert states(run) == ["queued", "starting", "running", "succeeded"]
    assert len(run.metrics) >= 4 and run.logs().startswith("step 0")
    fetched = run.fetch(tmp_path / "fetched")
    assert {path.name for path in fetched} >= {"last.ckpt", "curves.png"}
    import torch

    assert torch.load(tmp_path / "fetched" / "last.ckpt", weights_only=True)["global_step"] == run.last.step


LOGS = """
import fsdl_dev
for step in range(25):
    fsdl_dev.log(step=step, loss=step / 8)
"""


REPEATED = """
import random, sys, fsdl_dev
from helper import scale
draw = random.Random(int(sys.argv[2]))
for step in range(5):
    fsdl_dev.log(step=step, loss=scale * draw.random())
print("here is", __file__)
"""


def test_a_run_from_far_away_is_repeated_there_and_here(lab):
    "With its own code and arguments, whatever the project has become; each metric is compared where both have it."
    lab.file("helper.py", "scale = 2.0\n")
    run = lab.launch(REPEATED, "--seed", 7).wait(300, progress=False)
    assert run.state == "succeeded", told(run)
    lab.file("helper.py", "scale = 5.0\n")
    lab.file("train.py", "raise SystemExit('today this is another script')\n")
    said: list[str] = []
    dry = fsdl_dev.reproduce(run, dry_run=True, folder=lab.folder, say=said.append)
    assert dry.ok and "Nothing was launched." in dry.to_text()
    for on, kind in ((None, "ssh"), ("test", "test")):
        again = fsdl_dev.reproduce(run, on=on, here=on == "test", folder=lab.folder, say=said.append)
        assert again.again is not None and again.again.state == "succeeded", told(again.again)
        lab.runs.append(again.again)
        assert again.again.target.kind == kind and again.again.params == {"seed": 7}
        assert again.ok and [row[0] for row in again.rows if row[3] == "identical"] == ["loss"], (
            again.to_text()
        )
        assert again.again.tags["reproduces"] == run.id
    assert not any("Traceback" in line for line in said)


def test_a_run_from_far_away_is_mirrored(lab, monkeypatch):
    "The events that were brought are enough for a tracker of this machine; files that one made there are named here."
    pytest.importorskip("mlflow")
    run, plain = lab.launch(LOGS, loggers=("tensorboard",)), lab.launch(LOGS)
    assert all(one.wait(300, progress=False).state == "succeeded" for one in (run, plain)), told(run)
    with TrackerServer() as server:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
        assert mirror(plain, "mlflow", say=None)["mlflow"]["rows"] == 25
        (sent,) = server.runs.values()
        assert [(step, value) for step, _, value in sent["rows"]] == [(step, step / 8) for step in range(25)]
    made = mirror(run, say=None)["tensorboard"]
    folder = run.path / "trackers" / "tensorboard"
    assert made["rows"] == 25 and made["path"] == str(folder) and shlex.quote(str(folder)) in made["command"]
    assert len(list(folder.glob("events.out*"))) == 1, "it was brought, not made again"


def test_a_module_with_what_is_beside_it(lab, net, tmp_path):
    "What git ignores is sent with --data, and named where it was not; what the module writes comes back."

    def launch(what, **more):
        lab.runs.append(fsdl_dev.launch(what, folder=lab.folder, on="box", gpus=0, say=None, **more))
        return lab.runs[-1]

    lay_out(lab.folder)
    lab.commit()
    alone = launch("-m pkg.train")
    check_neighbours(launch, tmp_path / "here")
    state = alone.wait(progress=False).state
    if net.real:  # else this machine plays the other one, and has the folder
        assert state == "failed" and "--data data" in alone.failure.command, alone.failure


def test_the_second_launch_sends_what_changed(lab):
    for number in range(30):
        lab.file(
            f"package/part{number}.py",
            f"# {number}\n" + "".join(f"value{i} = {hash((number, i))}\n" for i in range(2000)),
        )
    first = lab.launch(HELLO)
    lab.file("package/part7.py", "value = 1\n")
    second = lab.launch(HELLO)
    sent = [
        next(e["bytes"] for e in events(run, "phase") if e["name"] == "snapshot" and e["state"] == "end")
        for run in (first, second)
    ]
    assert sent[0] > 100_000 > 5_000 > sent[1] > 0
    assert [run.wait(300, progress=False).state for run in (first, second)] == ["succeeded"] * 2


def test_cancel_saves_a_checkpoint(lab):
    run = lab.launch(TRAIN, "/nowhere")
    until_log(run, "step 2")
    run.cancel()
    assert until_state(run, *FINAL) == "cancelled", told(run)
    assert "cancelled by" in run.view.reason and run.last.path.name == "stopped.ckpt"
    run.fetch(lab.folder / "out")
    assert (lab.folder / "out" / "stopped.ckpt").exists() or (run.checkpoints and run.last.exists)


def test_a_queued_run_is_cancelled(lab, monkeypatch):
    lab.configure(kind="ssh", host="box", python=sys.executable, env={"FSDL_SLOTS": "1"})
    first = lab.launch(UNTIL, "/nowhere")
    until_log(first, "up")
    second = lab.launch(UNTIL, "/nowhere")
    until(lambda: second.view.state == "queued" and first.words in second.view.reason, "for the queue")
    second.cancel()
    assert until_state(second, *FINAL) == "cancelled"
    assert [row.run for row in first.target.queue()] == [first.id]


def test_a_failure_is_told_by_file_and_line(lab):
    run = lab.launch("def deep():\n    return {}['none']\n\nprint('é')\ndeep()\n")
    assert run.wait(300, progress=False).state == "failed"
    assert (
        run.failure
        and "KeyError" in run.failure.text()
        and "train.py" in run.failure.text()
        and "é" in run.logs()
    )


def test_more_than_the_machine_has_is_refused(lab, net):
    with pytest.raises(FsdlError, match="GPU") as caught:
        run = lab.launch(HELLO, gpus=64)
        run.wait(300, progress=False)
        raise FsdlError(run.view.reason, fix="seen")
    assert caught.value.fix


@pytest.mark.tier("smoke")
def test_several_processes(lab):
    run = lab.launch(
        """
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        x = torch.ones(1)
        dist.all_reduce(x)
        print("sum", x.item(), flush=True)
        dist.destroy_process_group()
        """,
        procs=2,
    )
    assert run.wait(300, progress=False).state == "succeeded", told(run)
    assert all(run.logs(rank).splitlines()[-1] == "sum 2.0" for rank in (0, 1))


def test_a_model_in_pieces_comes_back_whole(lab):
    """Two processes of FSDP2 save a folder there; it is fetched and put together here, and says of the same
    tokens what the run said.
    """
    run = lab.launch(
        """
        import torch
        from fsdl_dev import Trainer
        from fsdl_dev.train.text import CausalLM

        rows = [
            {"input_ids": torch.randint(0, 64, (16,), generator=torch.Generator().manual_seed(i))} for i in range(8)
        ]
        config = {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "vocab_size": 64,
            "max_position_embeddings": 16,
        }
        module = CausalLM("llama", model_settings={"config": config}, lr=1e-2)
        loader = torch.utils.data.DataLoader(rows, 4)
        trainer = Trainer(max_epochs=2, strategy="fsdp", accelerator="cpu", enable_model_summary=False)
        trainer.fit(module, loader, loader)
        """,
        procs=2,
    )
    assert run.wait(300, progress=False).state == "succeeded", told(run)
    said = run.metrics.dropna(subset=["val_loss"]).set_index("step")["val_loss"]
    import torch

    model = run.load("last").eval()
    assert run.last.path.is_dir() and run.last.exists
    rows = torch.stack(
        [torch.randint(0, 64, (16,), generator=torch.Generator().manual_seed(i)) for i in range(8)]
    )
    with torch.no_grad():
        loss = model.model(input_ids=rows, labels=rows).loss.item()
    assert loss == pytest.approx(said[run.last.step], abs=1e-4)


# --- the connection
# ----------------------------------------------------------------------------------------------


def test_closing_the_laptop_changes_nothing(lab, net, tmp_path):
    "kill -9 the launcher and the shared connection: the run goes on, and another process finds it."
    stop = "/var/tmp/go" if net.real else tmp_path / "go"
    launcher = lab.launcher(
        "run = lab.launch(UNTIL, sys.argv[1]); say(run.id); until_log(run, 'up'); say('up'); time.sleep(600)",
        str(stop),
    )
    run_id = launcher.stdout.readline().strip()
    assert run_id and launcher.stdout.readline() == "up\n", launcher.stderr.read()
    os.killpg(launcher.pid, signal.SIGKILL)
    launcher.wait()
    run = fsdl_dev.load_run(run_id, lab.folder)
    lab.runs.append(run)
    run.target.engine.shell.disconnect()
    if net.real:
        net["box"].inside(shell="pkill -9 -f 'sshd: root'", check=False)
    time.sleep(1)
    assert run.view.state == "running"
    net["box"].ssh(f"touch {stop}")
    other = lab.launcher(
        "run = fsdl_dev.load_run(sys.argv[1], lab.folder); run.wait(300, progress=False); say(run.state,"
        " run.logs().split())",
        run_id,
    )
    assert other.communicate(timeout=400)[0] == "succeeded ['up', 'done']\n"


@pytest.mark.tier("long", "cable pulled")
@real
@pytest.mark.parametrize("how", ["sshd stopped", "cable pulled"])
def test_a_while_without_the_machine(lab, net, how):
    "Nothing ends, nobody is disturbed, and the card says since when."
    run = lab.launch(TRAIN, "/var/tmp/later")
    until_log(run, "step 1")
    until(lambda: run.view.state == "running", "for the run's first events")
    box = net["box"]
    box.stop_sshd() if how == "sshd stopped" else box.unplug()
    try:
        away, said = time.monotonic(), ""
        while not said or time.monotonic() < away + 20:
            began = time.monotonic()
            assert began < away + PATIENCE, "nothing was said of a machine that cannot be reached"
            view = run.view
            assert view.state == "running" and time.monotonic() - began < 30
            said = said or say_contact(view)
            time.sleep(0.5)
    finally:
        box.start_sshd() if how == "sshd stopped" else box.plug()
    assert said.startswith("not reached since") and "what was known then" in said
    steps = len(run.metrics)
    until(lambda: run.view and len(run.metrics) > steps + 100, "for the steps of that while")
    box.ssh("touch /var/tmp/later")
    assert run.wait(300, progress=False).state == "succeeded"
    box.ssh("rm /var/tmp/later")


@pytest.mark.tier("long", "0.15", "0.7", "1.[37]")
@pytest.mark.parametrize("delay", [0.15, 0.4, 0.7, 1.0, 1.3, 1.7])
def test_killed_during_submission(lab, net, tmp_path, delay):
    "Whenever the launcher dies, the job is started once or not at all, and whoever looks next knows which."
    count = "/var/tmp/starts" if net.real else tmp_path / "starts"
    net["box"].ssh(f"rm -rf {count}; mkdir {count}")
    script = (
        "import os, sys, time\nopen(f'{sys.argv[1]}/{time.time()}-{os.getpid()}',"
        " 'w').close()\ntime.sleep(1)\n"
    )
    launcher = lab.launcher(
        "say('go'); run = lab.launch(sys.argv[1], sys.argv[2]); say(run.id)", script, str(count)
    )
    assert launcher.stdout.readline() == "go\n"
    time.sleep(delay)
    os.killpg(launcher.pid, signal.SIGKILL)
    launcher.wait()
    ids = [path.name for path in Path(os.environ["FSDL_STORE"], "runs").glob("2*")]
    assert len(ids) <= 1
    ended = None
    if ids:
        run = fsdl_dev.load_run(ids[0], lab.folder)
        end = time.monotonic() + 300
        while (ended := run.view.state) not in FINAL and (ended is not None or time.monotonic() < end - 270):
            assert time.monotonic() < end, told(run)
            time.sleep(0.2)
        for _ in range(3):  # asking again starts nothing again
            run.target.poll(run.dir)
    time.sleep(1.5)
    started = len(net["box"].ssh(f"ls {count}").stdout.split())
    assert started == (1 if ended == "succeeded" else 0), (ended, started)


@real
def test_a_restart_of_the_machine(lab, net):
    "Another boot: the run is lost, and the last checkpoint is named and can be fetched."
    run = lab.launch(TRAIN, "/nowhere")
    until_log(run, "step 5")
    net["box"].reboot()
    assert until_state(run, *FINAL) == "lost", told(run)
    assert "restarted" in run.view.reason and "checkpoints/last.ckpt" in run.view.reason
    run.fetch(lab.folder / "out")
    assert (lab.folder / "out" / "last.ckpt").stat().st_size > 0


def test_a_killed_worker(lab, net):
    "kill -9 of the worker: lost, nothing is left running there."
    run = lab.launch(TRAIN, "/nowhere")
    until_log(run, "step 2")
    pid = net["box"].ssh(f"cat ~/.fsdl_dev/runs/{run.id}/.started/who").stdout.split()[0]
    net["box"].ssh(f"kill -9 {pid}")
    assert until_state(run, *FINAL) == "lost", told(run)
    assert "killed" in run.view.reason
    assert run.dir.last_state()["ended"] <= run.dir.last_state()["t"], "dated by the machine, not by the look"
    until(
        lambda: (
            run.id
            not in net["box"]
            .ssh("cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep FSDL_RUN_ID; true")
            .stdout
        )
    )


# --- what can be wrong
# ---------------------------------------------------------------------------------------------


def look(lab):
    "What `fsdl targets` asks."
    return get_target("box", find_project(lab.folder)).look()


def test_a_refused_key(lab, net, tmp_path):
    SshShell("box").disconnect()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "stranger"], check=True)
    net.write_config(IdentityFile=tmp_path / "stranger")
    try:
        with pytest.raises(FsdlError, match="key") as caught:
            lab.launch()
        assert "ssh-copy-id box" in caught.value.fix and "box" in caught.value.where
        assert not list(Path(os.environ["FSDL_STORE"]).glob("runs/2*"))
        seen = look(lab)
        assert not seen.reachable and "key" in seen.detail and "ssh-copy-id box" in seen.fix
    finally:
        net.write_config()


def test_a_changed_host_key(lab, net, tmp_path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
    known = net.folder / "known_hosts"
    before = known.read_text()
    SshShell("box").disconnect()
    known.write_text(f"box {' '.join((tmp_path / 'other.pub').read_text().split()[:2])}\n")
    try:
        with pytest.raises(FsdlError, match="another host key") as caught:
            lab.launch()
        assert "ssh-keygen" in caught.value.fix
    finally:
        known.write_text(before)


@real
def test_a_full_disk_there(lab, net):
    "A storage of 3 MB: what does not fit is refused before anything is queued, naming the place."
    lab.configure(kind="ssh", host="box", python=sys.executable, storage="/small/fsdl")
    (lab.folder / "big.bin").write_bytes(os.urandom(5_000_000))
    with pytest.raises(FsdlError, match="(?i)space|full") as caught:
        lab.launch()
    assert "/small" in str(caught.value) and caught.value.fix
    assert not list(Path(os.environ["FSDL_STORE"]).glob("runs/2*"))
    net["box"].ssh("rm -rf /small/fsdl")


@real
def test_a_disk_so_full_that_nobody_can_say_so(lab, net):
    "Nothing can be written, not even why: the machine is asked."
    lab.configure(kind="ssh", host="box", python=sys.executable, storage="/medium/fsdl")
    run = lab.launch("import os, time\nprint('up', flush=True)\ntime.sleep(600)\n")
    until_log(run, "up")
    net["box"].ssh("rm -f /medium/fsdl/runs/*/.reserve; cat /dev/zero >/medium/fill", check=False)
    pid = net["box"].ssh(f"cat /medium/fsdl/runs/{run.id}/.started/who").stdout.split()[0]
    net["box"].ssh(f"pkill -9 -P {pid}; kill -9 {pid}; true")
    assert until_state(run, *FINAL) == "failed", told(run)
    assert "disk of box is full" in run.view.reason and "/medium/fsdl" in run.view.reason
    net["box"].ssh("rm -rf /medium/*")


@real
def test_a_disk_that_fills_up(lab, net):
    "The job's own error arrives, by the last bytes that were kept for it."
    lab.configure(kind="ssh", host="box", python=sys.executable, storage="/medium/fsdl")
    run = lab.launch("""
        import os
        print("before", flush=True)
        with open(os.environ["FSDL_RUN_DIR"] + "/checkpoints/huge", "wb") as file:
            for _ in range(30): file.write(bytes(1_000_000)); file.flush()
        """)
    assert run.wait(300, progress=False).state == "failed", told(run)
    assert "No space left" in run.failure.text() and run.logs().startswith("before")
    assert "(on box: df -h /medium/fsdl)" in run.failure.command
    net["box"].ssh("rm -rf /medium/*")


@real
def test_a_home_that_cannot_be_written(lab, net):
    net["box"].inside(shell="chmod 555 ~ann; chown root ~ann")
    lab.configure(kind="ssh", host="ann@box", python=sys.executable)
    try:
        with pytest.raises(FsdlError, match="(?i)written|permission") as caught:
            lab.launch()
        assert "ann" in str(caught.value) and "storage" in caught.value.fix
    finally:
        net["box"].inside(shell="chmod 755 ~ann; chown ann ~ann")
    lab.configure(kind="ssh", host="ann@box", python=sys.executable)
    run = lab.launch()
    assert run.wait(300, progress=False).state == "succeeded", told(run)


@pytest.mark.parametrize("python", ["/opt/none/bin/python", "old"])
def test_another_python_there(lab, net, tmp_path, python):
    "Named with its version before anything is queued, and the fields that fix it."
    if python == "old":
        old = net["box"].folder / "var" / "python3.9" if net.real else tmp_path / "python3.9"
        python = "/var/tmp/python3.9" if net.real else str(old)
        old.write_text(
            f'#!/bin/sh\n[ "$1" = -V ] && echo Python 3.9.2 && exit\nexec {shlex.quote(sys.executable)} -c \'import'
            ' sys\nsys.version_info = (3, 9, 2, "final", 0); sys.version = "3.9.2"\nimport platform;'
            ' platform.python_version = lambda: "3.9.2"\nsource, sys.argv = (sys.stdin.read() if'
            ' len(sys.argv) < 2 or sys.argv[1] == "-" else ""), sys.argv\nflags = sys.argv[1:]\nif "-c" in'
            ' flags: source = flags[flags.index("-c") + 1]\nexec(source)\' "$@"\n'
        )
        old.chmod(0o755)
    lab.configure(kind="ssh", host="box", python=python)
    with pytest.raises(FsdlError) as caught:
        lab.launch()
    assert re.search("python", str(caught.value), re.I) and (
        "python =" in str(caught.value) or 'environment = "lock"' in str(caught.value)
    )


# --- many
# -------------------------------------------------------------------------------------------------------------


def test_two_launches_at_once(lab):
    lab.file("one.py", HELLO)
    lab.commit()
    launchers = [
        lab.launcher(
            "run = lab.launch(HELLO, name='one.py'); say(run.id); run.wait(400, progress=False);"
            " say(run.state)"
        )
        for _ in range(2)
    ]
    said = [launcher.communicate(timeout=450) for launcher in launchers]
    assert [out.split()[1:] for out, _ in said] == [["succeeded"]] * 2, said
    assert len({out.split()[0] for out, _ in said}) == 2


@pytest.mark.tier("long")
@pytest.mark.timeout(1500)
def test_two_hundred_launches_at_once(lab, net):
    "They wait in one line for two slots; none is lost, none runs twice, and the machine stays usable."
    count = "/var/tmp/two-hundred" if net.real else str(net.folder / "two-hundred")
    net["box"].ssh(f"rm -rf {count}; mkdir {count}")
    lab.configure(kind="ssh", host="box", python=sys.executable, slots=8)
    lab.file(
        "count.py", "import os, sys\nopen(f'{sys.argv[1]}/{os.environ[\"FSDL_RUN_ID\"]}', 'x').close()\n"
    )
    target, project, crowd = get_target("box", find_project(lab.folder)), find_project(lab.folder), 200
    snapshot = take_snapshot(project)
    items = []
    for number in range(crowd):
        job = Job(
            kind="script",
            name=f"number {number}",
            script="count.py",
            args=(count,),
            resources=Resources(gpus=0),
        )
        run = create_run_dir(open_store(project), job, LaunchRecord(target="box", project=str(project.root)))
        write_json(run.snapshot_file, {"digest": snapshot.digest})
        items.append((run, job))
    began = time.monotonic()
    target.submit_many(items, project)
    print(f"{crowd} launches handed over in {time.monotonic() - began:.1f} s")
    end = time.monotonic() + 900
    while left := [run for run, _ in items if target.poll(run) not in FINAL]:
        assert time.monotonic() < end, f"{len(left)} left: {left[0].last_state()}"
        time.sleep(1)
    assert {run.state() for run, _ in items} == {"succeeded"}
    assert sorted(net["box"].ssh(f"ls {count}").stdout.split()) == sorted(run.id for run, _ in items)
    assert target.queue() == []


# --- clocks, quotas, users
# ------------------------------------------------------------------------------------------------


@real
@pytest.mark.parametrize("ahead", [2 * 86400, -7200])
def test_a_wrong_clock(tmp_path_factory, tmp_path, monkeypatch, ahead):
    "The order of states and the duration stay right; the times are those of the far machine."
    with machines(tmp_path_factory.mktemp("clock"), ["box"], box={"clock": ahead}) as net:
        assert abs(float(net["box"].ssh("date +%s").stdout) - time.time() - ahead) < 60
        for key, value in net.environment().items():
            monkeypatch.setenv(key, value)
        lab, began = Lab(tmp_path, net), time.time()
        run = lab.launch(
            "import select\nfrom fsdl_dev.train.loggers import log\nfor step in range(3): log(step,"
            " loss=1.0); select.select([], [], [], 0.4)\n"
        )  # libfaketime breaks time.sleep
        assert run.wait(300, progress=False).state == "succeeded", told(run)
        assert (
            states(run) == ["queued", "starting", "running", "succeeded"]
            and 0.9 < run.seconds < time.time() - began + 60
        )
        lost = lab.launch(
            "import select\nfrom fsdl_dev.train.loggers import log\nfor step in range(10_000): log(step,"
            " loss=1.0); print('step', step, flush=True); select.select([], [], [], 0.2)\n"
        )
        until_log(lost, "step 3")
        assert 0 < lost.seconds < 60 and "no step for" not in lost.status_line(), told(lost)
        pid = events(lost, "state")[-1]["pid"]
        net["box"].ssh(f"pkill -9 -P {pid}; kill -9 {pid}; true")  # with what would have said it
        assert until_state(lost, "lost") == lost.dir.state(), told(lost)
        assert 0 < lost.seconds < 60 and len(states(lost)) == 4, told(lost)


@real
def test_two_people_on_one_box(tmp_path_factory, tmp_path, monkeypatch):
    """ann and bob launch on a box with one GPU; nobody has configured anything.

    bob waits for ann, and both see both.
    """
    with machines(tmp_path_factory.mktemp("people"), ["box"], box={"gpus": 1}) as net:
        for key, value in net.environment().items():
            monkeypatch.setenv(key, value)
        ann, bob = Lab(tmp_path / "ann", net, "ann@box"), Lab(tmp_path / "bob", net, "bob@box")
        first = ann.launch(
            "import os\nprint('gpu', os.environ['CUDA_VISIBLE_DEVICES'], flush=True)\n" + UNTIL,
            "/var/tmp/anns-turn-is-over",
            gpus=1,
        )
        until_log(first, "up")
        second = bob.launch(
            "import os\nprint('gpu', os.environ['CUDA_VISIBLE_DEVICES'], flush=True)\n", gpus=1
        )
        until(
            lambda: second.view.state == "queued" and first.words in second.view.reason,
            "for bob to be told whom he waits for",
        )
        rows = second.target.queue()
        assert [(row.owner, bool(row.slots)) for row in rows] == [("ann", True), ("bob", False)]
        seen = first.target.look()
        assert (seen.gpus, seen.gpus_free, seen.running, seen.queued) == (1, 0, 1, 1)
        net["box"].ssh("touch /var/tmp/anns-turn-is-over", user="ann")
        assert (
            second.wait(300, progress=False).state == "succeeded" == first.wait(300, progress=False).state
        ), told(second)
        assert "gpu 0" in first.logs() and "gpu 0" in second.logs()


@real
def test_a_gpu_that_somebody_uses_outside_the_queue(tmp_path_factory, tmp_path, monkeypatch):
    with machines(tmp_path_factory.mktemp("outside"), ["box"], box={"gpus": 2}) as net:
        for key, value in net.environment().items():
            monkeypatch.setenv(key, value)
        lab = Lab(tmp_path, net)
        outsider = subprocess.Popen(
            ["ssh", "-F", str(net.config), "bob@box", "echo $$; exec sleep 300"],
            stdout=subprocess.PIPE,
            text=True,
        )
        pid = outsider.stdout.readline().strip()
        (net["box"].folder / "gpu_apps").write_text(f"GPU-00000001, {pid}, 70000\n")
        seen = look(lab)
        outsider.kill()
        outsider.wait()
        assert (seen.gpus, seen.gpus_free) == (2, 1)
        assert any("GPU 1 is used by bob" in note and pid in note for note in seen.notes), seen.notes


def test_a_run_is_repeated_there(lab, monkeypatch):
    "What can be identical is said first, and afterwards which metric is within the tolerance and which is not."
    text = "import os, random, fsdl_dev\nrandom.seed(1)\n"
    text += "fsdl_dev.log(1, seeded=random.random(), chance=int.from_bytes(os.urandom(6), 'big'))\n"
    run = lab.launch(text)
    assert run.wait(300, progress=False).state == "succeeded", told(run)
    lab.file("train.py", "raise SystemExit('another text')")
    monkeypatch.chdir(lab.folder)
    line = LINES["fsdl_reproduce"]
    answer = line.callback(None, **parse_line(line, f"{run.words} --on box"))
    lab.runs.append(answer.again)
    checks = {check.name: check for check in answer.checks}
    assert checks["code"].verdict == "pass" and "about as much again" in checks["cost"].message
    assert answer.again.state == "succeeded", told(answer.again)
    verdicts = {name: verdict for name, *_, verdict in answer.rows}
    assert verdicts["seeded"] == "identical" and verdicts["chance"].startswith("outside: ") and not answer.ok


def test_a_shell_in_the_code_of_a_run(lab):
    run = lab.launch("print('as it was')\n")
    until_state(run, *FINAL)
    (lab.folder / "train.py").write_text("raise SystemExit(9)\n")
    plan = plan_shell(run, command="uname -n; python train.py && exit 5")
    assert plan.where == "box"
    done = subprocess.run(plan.words, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 5 and "as it was" in done.stdout, done
