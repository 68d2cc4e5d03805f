#!/usr/bin/env python3
"""A stand-in for SkyPilot's command line in tests: `sky` of 0.14.1, as far as the target uses it.

It answers in that version's JSON (the fields of its ManagedJobRecord, ClusterJobRecord, StatusResponse and
RequestPayload), and "rents" this machine: the task's `run` is started as SkyPilot would start it, with
SKYPILOT_NODE_RANK and SKYPILOT_NODE_IPS, and the bucket where file_mounts puts it. Its state is a JSON file
beside SKY_STAND_IN; `sky gpus` and the catalogue are not in it. A test breaks it by writing `break.json` there:
{"launch": "what it says"}, {"accounts": 5}: how long a job took is said 5 seconds after its end.
"""

import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

HOME = Path(os.environ["SKY_STAND_IN"])
VERBOSE = (
    "cloud",
    "region",
    "details",
    "failure_reason",
)  # _VERBOSE_MANAGED_JOB_FIELDS_TO_GET of sky/client/cli/command.py


@contextmanager
def state():
    "What SkyPilot knows, read and written under a lock."
    HOME.mkdir(parents=True, exist_ok=True)
    with open(HOME / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = HOME / "state.json"
        known = (
            json.loads(path.read_text()) if path.exists() else {"jobs": [], "clusters": {}, "requests": []}
        )
        yield known
        path.with_suffix(".new").write_text(json.dumps(known))
        path.with_suffix(".new").replace(path)  # tests read it without the lock


def alive(pid: int) -> bool:
    "Whether a process is there and no zombie."
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def refresh(known: dict) -> None:
    "Let the jobs' states follow their processes."
    for job in known["jobs"]:
        if job["status"] not in ("RUNNING", "CANCELLING"):
            continue
        ends = [HOME / f"{job['job_id']}.{rank}.end" for rank in range(job["nodes"])]
        if all(end.exists() for end in ends):
            codes = [int(end.read_text() or 1) for end in ends]
            again = (job["task"]["resources"].get("job_recovery") or {}).get("recover_on_exit_codes", [])
            if job["managed"] and job["status"] == "RUNNING" and set(codes) & set(again):
                job["recovery_count"] += 1
                start(job)
                continue
            job["status"] = (
                "CANCELLED" if job["status"] == "CANCELLING" else "FAILED" if any(codes) else "SUCCEEDED"
            )
            job["end_at"] = time.time()
            job["job_duration"] = job["end_at"] - job["submitted_at"]


def launch(known: dict, name: str, task: dict, managed: bool) -> dict:
    "Start a task on this machine."
    job = {
        "job_id": len(known["jobs"]) + 1,
        "job_name": name,
        "status": "RUNNING",
        "recovery_count": 0,
        "submitted_at": time.time(),
        "end_at": None,
        "job_duration": None,
        "cloud": "AWS",
        "region": "us-east-1",
        "failure_reason": None,
        "details": None,
        "user_name": "ada",
        "nodes": task["num_nodes"],
        "managed": managed,
        "task": task,
        "pids": [],
    }
    known["jobs"].append(job)
    if not managed:
        known["clusters"][name] = {
            "name": name,
            "status": "UP",
            "autostop": task["resources"]["autostop"]["idle_minutes"],
            "to_down": task["resources"]["autostop"]["down"],
            "nodes": task["num_nodes"],
        }
    start(job)
    return job


def start(job: dict) -> None:
    "The machines of a job: one process for each."
    task, job["pids"] = job["task"], []
    for rank in range(job["nodes"]):
        end, log = HOME / f"{job['job_id']}.{rank}.end", open(HOME / f"{job['job_id']}.{rank}.log", "ab")
        end.unlink(missing_ok=True)
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("FSDL_", "SLURM_")) and key != "IN_TEST"
        } | task.get("envs", {})
        kept |= {
            "SKYPILOT_NODE_RANK": str(rank),
            "SKYPILOT_NODE_IPS": "\n".join(["127.0.0.1"] * job["nodes"]),
            "FSDL_UPLINK_SECONDS": "0.2",
        }
        run = task["run"]
        for mount, source in task[
            "file_mounts"
        ].items():  # each machine has its own disk and the bucket in its place
            machine = HOME / f"{job['job_id']}-{job['recovery_count']}.{rank}"
            machine.mkdir(exist_ok=True)
            if not os.path.lexists(mount):
                Path(mount).parent.mkdir(parents=True, exist_ok=True)
                os.symlink(source["source"].removeprefix("file://"), mount)
        waits = (
            'trap : TERM; sh -c "$RUN" & child=$!; trap "kill -TERM $child" TERM; while kill -0 $child'
            f' 2>/dev/null; do wait $child; code=$?; done; echo $code > "{end}~"; mv "{end}~" "{end}"'
        )
        command = ["sh", "-c", waits]
        if (
            job["nodes"] > 1
        ):  # machines do not share a disk: each has its own folder mounted in its place (takes root)
            disk = shlex.split(next(line for line in run.splitlines() if line.startswith("ROOT=")))[
                0
            ].removeprefix("ROOT=")
            os.makedirs(disk, exist_ok=True)
            command = [
                "unshare",
                "--mount",
                "sh",
                "-c",
                'mount --bind "$0" "$1" && shift && exec "$@"',
                str(machine),
                disk,
                *command,
            ]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=kept | {"RUN": run},
            start_new_session=True,
        )
        job["pids"].append(process.pid)


def late(job: dict, broken: dict) -> set[str]:
    "What is not said yet of a job that has ended."
    young = job["end_at"] and time.time() - job["end_at"] < broken.get("accounts", 0)
    return {"job_duration"} if young else set()


def stop(job: dict) -> None:
    "Tell a job's machines to stop, as `sky cancel` does."
    job["status"] = "CANCELLING"
    for pid in job["pids"]:
        if alive(pid):
            os.kill(pid, signal.SIGTERM)


def take_away(known: dict) -> None:
    "A spot machine is gone, and the controller rents another (for tests: `sky stand-in preempt NAME`)."
    job = next(job for job in known["jobs"] if job["job_name"] == sys.argv[3])
    for pid in job["pids"]:
        os.killpg(pid, signal.SIGKILL)
    job["recovery_count"] += 1
    start(job)


def option(*names: str) -> str | None:
    "The value of an option."
    return next((sys.argv[place + 1] for place, word in enumerate(sys.argv) if word in names), None)


def main() -> int:  # noqa: C901  one branch for each command
    import yaml

    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    if sys.argv[1:] == ["--version"]:
        print("skypilot, version 0.14.1 (stand-in)")
        return 0
    broken = json.loads((HOME / "break.json").read_text()) if (HOME / "break.json").exists() else {}
    verb = (
        " ".join(words[:3])
        if words[:2] == ["stand-in", "go"]
        else " ".join(words[:2])
        if words[0] in ("jobs", "api", "stand-in")
        else words[0]
    )
    if verb in broken:
        print(broken[verb], file=sys.stderr)
        return 1
    with state() as known:
        refresh(known)
        if verb in ("jobs launch", "launch"):
            task, request = yaml.safe_load(Path(words[-1]).read_text()), str(uuid.uuid4())
            known["requests"].append(
                {
                    "request_id": request,
                    "name": f"sky.{verb.replace(' ', '.')}",
                    "status": "SUCCEEDED",
                    "status_msg": None,
                }
            )
            if "under way" in broken:
                known["requests"][-1] |= {
                    "status": "RUNNING",
                    "launch": [option("-n", "-c"), task, verb == "jobs launch"],
                }
            elif "late" in broken:
                known["requests"][-1] |= {"status": "FAILED", "status_msg": broken["late"]}
            else:
                launch(known, option("-n", "-c"), task, verb == "jobs launch")
            print(f"Submitted sky.{verb} request: {request}\n├── Check logs with: sky api logs {request}")
        elif verb == "jobs queue":
            shown = {
                "job_id",
                "job_name",
                "submitted_at",
                "end_at",
                "job_duration",
                "recovery_count",
                "status",
                *(VERBOSE if "-v" in sys.argv else ()),
            }
            print(
                json.dumps(
                    [
                        {
                            key: value if key in shown - late(job, broken) else None
                            for key, value in job.items()
                        }
                        for job in known["jobs"]
                        if job["managed"]
                    ],
                    indent=2,
                )
            )
        elif verb == "status":
            print(json.dumps(list(known["clusters"].values()), indent=2))
        elif verb == "queue":
            print(
                json.dumps(
                    {
                        name: [job for job in known["jobs"] if job["job_name"] == name]
                        for name in words[1:]
                        if name in known["clusters"]
                    },
                    indent=2,
                )
            )
        elif verb == "api status":
            every, prefixes = "-a" in sys.argv, [word for word in words[2:] if word != "json"]
            print(
                json.dumps(
                    [
                        request
                        for request in known["requests"]
                        if (every or request["status"] in ("PENDING", "RUNNING"))
                        and (not prefixes or request["request_id"] in prefixes)
                    ],
                    indent=2,
                )
            )
        elif verb == "api cancel":
            for request in known["requests"]:
                if request["request_id"] in words and request["status"] == "RUNNING":
                    request |= {"status": "CANCELLED"}
                    print(f"Cancelled 1 request: {request['request_id']}")
        elif verb in ("jobs cancel", "cancel"):
            name = option("-n") or words[-1]
            if not any(job["job_name"] == name for job in known["jobs"]):
                print(f"ValueError: No running job found with name '{name}'.", file=sys.stderr)
                return 1
            for job in known["jobs"]:
                if job["job_name"] == name and job["status"] == "RUNNING":
                    stop(job)
        elif verb == "down":
            print(
                "\n".join(
                    (
                        f"Terminating cluster {name}"
                        if known["clusters"].pop(name, None)
                        else f"Cluster(s) not found: {name}"
                    )
                    for name in words[1:]
                )
            )
        elif verb == "stand-in preempt":
            take_away(known)
        elif verb == "stand-in go on":  # the launches that were under way get through
            for request in known["requests"]:
                if request["status"] == "RUNNING":
                    request["status"] = "SUCCEEDED"
                    launch(known, *request["launch"])
        else:
            print(f"Error: no such command {sys.argv[1:]}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
