"""The SSH target on two machines of their own: a rendezvous across hosts, and several users on one box."""

import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from hosts import USERS, machines, why_no_namespaces

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_no_namespaces()), reason=why_no_namespaces() or "-")]


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    with machines(tmp_path_factory.mktemp("net"), ["gpu1", "gpu2"], gpu1={"gpus": 2}, gpu2={"loopback_name": True}) as net:
        yield net


HOLD = """
import sys, time
from fsdl_dev.launch.devices import visible_gpus
from fsdl_dev.launch.slots import lease, slots_table
with lease("local/gpu", visible_gpus(), int(sys.argv[2]), sys.argv[1], on_wait=lambda position, ahead: print("waits", position, ",".join(ahead), flush=True)) as held:
    print("holds", ",".join(map(str, held.slots)), flush=True)
    sys.stdin.readline()
"""


def hold(net, user: str, run: str, gpus: int) -> subprocess.Popen:
    "A process of a user that leases GPUs of gpu1 and keeps them until it is told."
    command = f"{sys.executable} -P /run/fsdl-host/hold.py {run} {gpus}"
    Path(net["gpu1"].folder, "hold.py").write_text(textwrap.dedent(HOLD))
    return subprocess.Popen(["ssh", "-F", str(net.config), f"{user}@gpu1", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_two_users_of_one_box_never_get_the_same_gpu(net):
    "Nobody configured anything: the tickets for GPUs are the machine's."
    first, second = hold(net, "ann", "anns-run", 1), None
    try:
        assert first.stdout.readline() == "holds 0\n"
        second = hold(net, "bob", "bobs-run", 2)
        assert second.stdout.readline() == "waits 1 anns-run\n"
        table = net["gpu1"].ssh(f"{sys.executable} -P -c 'from fsdl_dev.launch.slots import slots_table; print([(r[\"user\"], r[\"slots\"], r[\"alive\"]) for r in slots_table()])'").stdout
        assert table == "[('ann', [0], True), ('bob', None, True)]\n"
        net["gpu1"].inside(shell="kill -9 $(pgrep -u ann -f hold.py)")  # ann's process cannot give anything back: bob notices
        assert second.stdout.readline() == "holds 0,1\n"
    finally:
        for process in (first, second):
            if process:
                process.stdin.close()
                process.wait(20)
    assert net["gpu1"].inside(shell="stat -c %a /var/tmp/fsdl_dev /var/tmp/fsdl_dev/*.sqlite").split() == ["777", "666"]
