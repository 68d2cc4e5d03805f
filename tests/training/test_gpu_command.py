"""`make gpu`: rows that hang, die or fail cost no other row; all rows run on a CPU with tiny sizes."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import gpu
import pytest
from repository import ROOT

PATIENCE = 850  # seconds; a smoke run that needs more has failed


class Script(gpu.Row):
    "A row that runs a script of the test's own, which finds the result's path in its arguments."

    def command(self, result: Path, cpu: bool) -> list[str]:
        return [sys.executable, "-c", f"import json, os, subprocess, sys, time\n{self.what}", str(result)]


def say(status: str, figure: float | None = None) -> str:
    result = json.dumps({"status": status, "result": "said", "figure": figure})
    return f"open(sys.argv[1], 'w').write({result!r})"


def test_rows_that_hang_die_or_fail_cost_no_other(tmp_path, capsys):
    left = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)"
    tell = f"open({str(tmp_path / 'pid')!r}, 'w').write(str({left}.pid))"
    rows = [
        Script("hangs", f"print('got so far', flush=True)\n{tell}\ntime.sleep(600)", 5),
        Script("dies", "os.kill(os.getpid(), 11)", 30),
        Script("raises", f"{say('passed')}\nraise ValueError('after its result')", 30),
        Script("fails", say("failed", 0.5), 30),
        Script("works", say("passed", 1.5), 30),
    ]
    report = gpu.Report(tmp_path / "gpu.json", {"smoke": True})
    gpu.run_rows(rows, report, 60.0, False, at_once=5)
    report.show()
    found = {row["name"]: row for row in json.loads(report.path.read_text())["rows"]}
    assert {name: row["status"] for name, row in found.items()} == {row.name: "failed" for row in rows} | {
        "works": "passed"
    }
    assert found["hangs"]["result"].startswith("no result in 5 s; got so far")
    assert (
        "exit status -11" in found["dies"]["result"]
        and "ValueError: after its result" in found["raises"]["result"]
    )
    assert (found["works"]["figure"], found["fails"]["figure"]) == (1.5, 0.5)
    end = time.monotonic() + 30
    pid = int((tmp_path / "pid").read_text())
    while (
        Path(f"/proc/{pid}").exists()
        and Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    ):
        assert time.monotonic() < end, "a process in a session of its own outlived its row"
        time.sleep(0.05)
    assert "1 passed, 4 failed, 0 skipped" in capsys.readouterr().out


def test_no_row_starts_when_the_budget_is_used_up(tmp_path):
    report = gpu.Report(tmp_path / "gpu.json", {})
    gpu.run_rows([Script("late", "raise SystemExit(1)", 30)], report, gpu.SMALLEST - 1, False, at_once=1)
    assert [row["status"] for row in report.rows] == ["skipped"]


def run_gpu(*arguments: str) -> subprocess.CompletedProcess:
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(ROOT / "tools" / "gpu.py"), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE, env=hidden)


def test_without_a_gpu_one_line_says_so():
    said = run_gpu()
    assert said.returncode == 2 and not said.stdout and said.stderr.count("\n") == 1, said
    assert (
        all(row.name in said.stderr for row in gpu.choose_rows("", cpu=False)) and "cells:nbs/" in said.stderr
    )


@pytest.mark.tier("long")
@pytest.mark.slow
def test_all_rows_run_on_a_cpu(tmp_path):
    said = run_gpu("--cpu", "--json", str(tmp_path / "gpu.json"))
    print(said.stdout)
    found = json.loads((tmp_path / "gpu.json").read_text())
    names = {row.name for row in gpu.choose_rows("", cpu=True)}
    assert said.returncode == 0 and found["smoke"] and "SMOKE RUN" in said.stdout, said.stdout + said.stderr
    assert {row["name"] for row in found["rows"]} == names and {row["status"] for row in found["rows"]} == {
        "passed"
    }
    assert all(row["figure"] for row in found["rows"])
