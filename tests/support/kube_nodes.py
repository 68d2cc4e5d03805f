"""The rest of a small cluster for tests: controllers (TrainJob -> JobSet -> Job -> pods, deletion, failure
policies) and nodes whose pods are real processes on this machine, spoken of through the API alone as in a
cluster. No containers: a pod's command runs as it stands, so the storage is mounted where it is. The names
of the headless service are what 127.0.0.1 answers to.
"""

import json
import os
import secrets
import signal
import subprocess
import threading
import time
import urllib.error
from contextlib import contextmanager
from pathlib import Path

from kube_api_server import Api

NAMESPACE = "team"
_OBJECTS = {
    "Job": "/apis/batch/v1/namespaces/team/jobs",
    "JobSet": "/apis/jobset.x-k8s.io/v1alpha2/namespaces/team/jobsets",
    "TrainJob": "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs",
}
PODS, SERVICES = "/api/v1/namespaces/team/pods", "/api/v1/namespaces/team/services"


def condition(kind: str, reason: str = "", message: str = "", status: str = "True") -> dict:
    "A condition as controllers write them."
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {
        "type": kind,
        "status": status,
        "reason": reason or kind,
        "message": message,
        "lastTransitionTime": now,
    }


def has(item: dict, kind: str) -> bool:
    "Whether an object has a condition."
    return any(
        c["type"] == kind and c["status"] == "True" for c in item.get("status", {}).get("conditions") or ()
    )


class Nodes:
    "Controllers and nodes, in one thread."

    def __init__(
        self, api: Api, folder: Path, kinds: tuple[str, ...] = ("Job",), gpus: dict[str, int] | None = None
    ):
        self.api, self.folder, self.kinds, self.gpus = api, folder, kinds, gpus or {"node-1": 0, "node-2": 0}
        # pod -> its process, and the grace period
        self.processes: dict[str, tuple[subprocess.Popen, int]] = {}
        self.killing: dict[str, float] = {}
        self.bucket: Path | None = None  # a folder that stands for the bucket
        self.room = 8  # pods at a time, on all nodes together
        self._stop, self._round, self.errors = threading.Event(), threading.Lock(), []
        for name, count in self.gpus.items():
            api.request(
                "POST",
                "/api/v1/nodes",
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": "H100"}},
                    "status": {
                        "allocatable": {"cpu": "64", "nvidia.com/gpu": str(count)},
                        "conditions": [condition("Ready")],
                    },
                },
            )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        "End every pod, and the controllers."
        self._stop.set()
        self._thread.join(120)
        for process, _ in self.processes.values():
            _signal(process, signal.SIGKILL)
            process.wait()

    def process_of(self, run_name: str) -> subprocess.Popen:
        "The process of a run's first pod."
        return next(
            process
            for name, (process, _) in sorted(self.processes.items())
            if name.startswith(run_name) and process.poll() is None
        )

    def evict(self, run_name: str, index: int = 0, hard: bool = False) -> None:
        "Take the node away from one of a run's pods, as a drain does; hard: as a power failure does."
        name = next(
            name
            for name, (process, _) in sorted(self.processes.items())
            if name.startswith(run_name) and f"-{index}-" in name[-8:] and process.poll() is None
        )
        self.api.update(
            f"{PODS}/{name}",
            lambda pod: (
                pod["status"]
                .setdefault("conditions", [])
                .append(condition("DisruptionTarget", "EvictionByEvictionAPI", "Eviction API: evicting"))
            ),
        )
        process, grace = self.processes[name]
        self.killing[name] = time.monotonic() + grace
        _signal(process, signal.SIGKILL if hard else signal.SIGTERM, group=hard)

    @contextmanager
    def paused(self):
        """Meanwhile nothing happens, as when the controllers are down.

        It begins once the round under way is over.
        """
        with self._round:
            yield

    def _run(self) -> None:
        "Reconcile, again and again."
        while not self._stop.wait(0.1):
            try:
                with self._round:
                    self._reconcile()
            except urllib.error.HTTPError as error:
                if error.code not in (404, 409):  # somebody was quicker
                    self.errors.append(f"{error} {error.read()[:500]!r}")
            except Exception as error:  # noqa: BLE001  told at the end of the test
                self.errors.append(repr(error))

    def _reconcile(self) -> None:
        pods = self.api.items(PODS)
        for kind in self.kinds:
            for item in self.api.items(_OBJECTS[kind]):
                if item["metadata"].get("deletionTimestamp"):
                    self._collect(kind, item, pods)
                elif not item["spec"].get("suspend") and not any(
                    has(item, end) for end in ("Complete", "Completed", "Failed")
                ):
                    getattr(self, f"_{kind.lower()}")(
                        item, [pod for pod in pods if _owner(pod) == item["metadata"]["uid"]]
                    )
        for pod in pods:
            self._kubelet(pod)

    # ---- controllers

    def _collect(self, kind: str, item: dict, pods: list[dict]) -> None:
        "Delete what belongs to a deleted object, then the object."
        mine, left = item["metadata"]["uid"], 0
        children = [
            (f"{path}/{child['metadata']['name']}", child)
            for inner, path in _OBJECTS.items()
            if inner in self.kinds
            for child in self.api.items(path)
            if _owner(child) == mine
        ]
        children += [(f"{PODS}/{pod['metadata']['name']}", pod) for pod in pods if _owner(pod) == mine]
        children += [
            (f"{SERVICES}/{s['metadata']['name']}", s) for s in self.api.items(SERVICES) if _owner(s) == mine
        ]
        for path, child in children:
            left += 1
            if not child["metadata"].get("deletionTimestamp"):
                self.api.request(
                    "DELETE",
                    path,
                    (
                        {"propagationPolicy": "Foreground"}
                        if "/pods/" not in path and "/services/" not in path
                        else {}
                    ),
                )
        if not left:
            self.api.update(
                f"{_OBJECTS[kind]}/{item['metadata']['name']}",
                lambda found: found["metadata"].update(finalizers=[]),
                status=False,
            )

    def _make(self, kind: str, owner: dict, name: str, spec: dict, labels: dict) -> None:
        "A child object, once."
        version = {"Job": "batch/v1", "JobSet": "jobset.x-k8s.io/v1alpha2"}[kind]
        reference = {
            "apiVersion": owner.get("apiVersion", "v1"),
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "controller": True,
        }
        body = {
            "apiVersion": version,
            "kind": kind,
            "metadata": {"name": name, "labels": labels, "ownerReferences": [reference]},
            "spec": spec,
        }
        try:
            self.api.request("POST", _OBJECTS[kind], body)
        except urllib.error.HTTPError as error:
            if error.code != 409:
                raise

    def _trainjob(self, item: dict, _) -> None:
        "A TrainJob becomes a JobSet by its runtime (here: an empty one) and its patches."
        trainer = item["spec"]["trainer"]
        patch = item["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"][
            "replicatedJobs"
        ][0]["template"]["spec"]["template"]
        container = {
            "name": "node",
            "image": trainer["image"],
            "command": trainer["command"],
            "env": trainer.get("env", []),
            "resources": trainer.get("resourcesPerNode", {}),
            "volumeMounts": patch["spec"]["containers"][0]["volumeMounts"],
        }
        pod = {
            "metadata": patch["metadata"],
            "spec": {**patch["spec"], "restartPolicy": "Never", "containers": [container]},
        }
        job = {
            "completionMode": "Indexed",
            "completions": trainer["numNodes"],
            "parallelism": trainer["numNodes"],
            "backoffLimit": 0,
            "template": pod,
        }
        self._make(
            "JobSet",
            {"kind": "TrainJob", **item},
            item["metadata"]["name"],
            {"replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": job}}]},
            item["metadata"]["labels"],
        )
        self._ends(
            "JobSet",
            "TrainJob",
            item,
            item["metadata"]["name"],
            {"Completed": "Complete", "Failed": "Failed"},
        )

    def _jobset(self, item: dict, _) -> None:
        "A JobSet becomes one Job, made anew by its failure policy."
        name = f"{item['metadata']['name']}-node-0"
        self._make(
            "Job",
            {"kind": "JobSet", **item},
            name,
            item["spec"]["replicatedJobs"][0]["template"]["spec"],
            item["metadata"]["labels"],
        )
        job = self._ends("Job", "JobSet", item, name, {"Complete": "Completed"})
        failed = next(
            (c for c in (job or {}).get("status", {}).get("conditions") or () if c["type"] == "Failed"), None
        )
        if not failed or job["metadata"].get("deletionTimestamp"):
            return
        policy, path = (
            item["spec"].get("failurePolicy") or {},
            f"{_OBJECTS['JobSet']}/{item['metadata']['name']}",
        )
        rule = next(
            (
                rule["action"]
                for rule in policy.get("rules") or ()
                if failed["reason"] in rule["onJobFailureReasons"]
            ),
            "RestartJobSet",
        )
        restarts = item.get("status", {}).get("restarts") or 0
        if rule == "FailJobSet" or restarts >= policy.get("maxRestarts", 0):
            self.api.update(
                path,
                lambda found: (
                    found.setdefault("status", {})
                    .setdefault("conditions", [])
                    .append(condition("Failed", "FailedJobs", f"jobset failed due to: {failed['message']}"))
                ),
            )
        else:
            self.api.update(path, lambda found: found.setdefault("status", {}).update(restarts=restarts + 1))
            self.api.request("DELETE", f"{_OBJECTS['Job']}/{name}", {"propagationPolicy": "Foreground"})

    def _ends(self, kind: str, outer: str, item: dict, name: str, ends: dict) -> dict | None:
        "Carry a child's end to its owner; the child."
        child = next(
            (found for found in self.api.items(_OBJECTS[kind]) if found["metadata"]["name"] == name), None
        )
        for inner, end in ends.items():
            if child and has(child, inner):
                self.api.update(
                    f"{_OBJECTS[outer]}/{item['metadata']['name']}",
                    lambda found, end=end: (
                        found.setdefault("status", {}).setdefault("conditions", []).append(condition(end))
                    ),
                )
        return child

    def _job(self, item: dict, pods: list[dict]) -> None:
        "An Indexed Job: a pod for each index, its failure policy, its end."
        name, spec, failed = (
            item["metadata"]["name"],
            item["spec"],
            [pod for pod in pods if pod.get("status", {}).get("phase") == "Failed"],
        )
        done = {
            pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]
            for pod in pods
            if pod.get("status", {}).get("phase") == "Succeeded"
        }
        alive = {
            pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]
            for pod in pods
            if pod.get("status", {}).get("phase") not in ("Failed", "Succeeded")
        }
        verdict = self._verdict(spec, failed)
        path = f"{_OBJECTS['Job']}/{name}"
        if verdict:
            self.api.update(
                path,
                lambda found: (
                    found["status"].setdefault("conditions", []).append(condition("Failed", *verdict))
                ),
            )
            for pod in pods:
                if pod.get("status", {}).get("phase") not in ("Failed", "Succeeded"):
                    self.api.request("DELETE", f"{PODS}/{pod['metadata']['name']}", {})
        elif len(done) == spec["completions"]:
            self.api.update(
                path, lambda found: found["status"].setdefault("conditions", []).append(condition("Complete"))
            )
        else:
            for index in map(str, range(spec["completions"])):
                if index not in done | alive:
                    self._pod(item, index)
            if (item.get("status") or {}).get("active") != len(alive):
                self.api.update(path, lambda found: found["status"].update(active=len(alive)))

    def _verdict(self, spec: dict, failed: list[dict]) -> tuple[str, str] | None:
        "The reason and message of a Job that has failed."
        counted = 0
        for pod in failed:
            code = (
                (pod["status"].get("containerStatuses") or [{}])[0]
                .get("state", {})
                .get("terminated", {})
                .get("exitCode", 0)
            )
            action = "Count"
            for rule in spec.get("podFailurePolicy", {}).get("rules", ()):
                if (
                    "onPodConditions" in rule
                    and any(has(pod, wanted["type"]) for wanted in rule["onPodConditions"])
                ) or (
                    "onExitCodes" in rule
                    and (code in rule["onExitCodes"]["values"]) == (rule["onExitCodes"]["operator"] == "In")
                ):
                    action = rule["action"]
                    break
            if action == "FailJob":
                return (
                    "PodFailurePolicy",
                    (
                        f"Container node for pod team/{pod['metadata']['name']} failed with exit code {code}"
                        " matching FailJob rule"
                    ),
                )
            counted += action == "Count"
        return (
            ("BackoffLimitExceeded", "Job has reached the specified backoff limit")
            if counted > spec.get("backoffLimit", 6)
            else None
        )

    def _pod(self, job: dict, index: str) -> None:
        "One pod of a Job."
        name, template = job["metadata"]["name"], json.loads(json.dumps(job["spec"]["template"]))
        labels = template["metadata"].get("labels", {}) | {
            "batch.kubernetes.io/job-name": name,
            "batch.kubernetes.io/job-completion-index": index,
        }
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": name,
            "uid": job["metadata"]["uid"],
            "controller": True,
        }
        self.api.request(
            "POST",
            PODS,
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"{name}-{index}-{secrets.token_hex(3)[:5]}",
                    "labels": labels,
                    "ownerReferences": [owner],
                },
                "spec": {**template["spec"], "hostname": f"{name}-{index}"[:63]},
                "status": {"phase": "Pending"},
            },
        )

    # ---- scheduler and kubelet

    def _kubelet(self, pod: dict) -> None:
        "Schedule a pod, start it, see how it ends."
        name, phase, going = (
            pod["metadata"]["name"],
            pod.get("status", {}).get("phase", "Pending"),
            self.processes.get(pod["metadata"]["name"]),
        )
        if going and pod["metadata"].get("deletionTimestamp") and name not in self.killing:
            self.killing[name] = time.monotonic() + going[1]
            _signal(going[0], signal.SIGTERM, group=False)
        if going and name in self.killing and time.monotonic() > self.killing[name]:
            _signal(going[0], signal.SIGKILL)
        if going and going[0].poll() is not None:
            self._ended(pod, going[0].returncode)
        elif phase == "Pending" and not going and not pod["metadata"].get("deletionTimestamp"):
            self._start(pod)
        if pod["metadata"].get("deletionTimestamp") and (not going or going[0].poll() is not None):
            self.api.request("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})

    def _start(self, pod: dict) -> None:
        "Give a pod a node and start its command, or say why not."
        name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]
        asked = int(((container.get("resources") or {}).get("limits") or {}).get("nvidia.com/gpu", 0))
        if sum(process.poll() is None for process, _ in self.processes.values()) >= self.room:
            return  # it waits
        node = next((node for node, count in self.gpus.items() if asked <= count), None)
        if "missing" in container["image"] or node is None:
            waits = {"phase": "Pending"}
            if node is None:
                waits["conditions"] = [
                    condition(
                        "PodScheduled",
                        "Unschedulable",
                        f"0/{len(self.gpus)} nodes are available: {len(self.gpus)} Insufficient"
                        " nvidia.com/gpu.",
                        "False",
                    )
                ]
            else:
                waits["containerStatuses"] = [
                    _status(
                        {
                            "waiting": {
                                "reason": "ImagePullBackOff",
                                "message": f'Back-off pulling image "{container["image"]}": not found',
                            }
                        }
                    )
                ]
            if (pod.get("status") or {}) != waits and not (
                pod["status"].get("conditions") or pod["status"].get("containerStatuses")
            ):
                self.api.update(f"{PODS}/{name}", lambda found: found.update(status=waits))
            return
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("FSDL_", "SLURM_")) and key != "IN_TEST"
        }
        given = {item["name"]: item["value"] for item in container.get("env") or () if "value" in item}
        if given.get("MASTER_ADDR", "").startswith("fsdl-"):
            given["MASTER_ADDR"] = "127.0.0.1"
        given |= {
            "JOB_COMPLETION_INDEX": pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"],
            "HOSTNAME": pod["spec"].get("hostname", name),
        }
        grace = pod["spec"].get("terminationGracePeriodSeconds", 30)
        command = container["command"]
        if self.bucket:  # the pod's own file system: the bucket and an empty disk, mounted for it alone
            disk = self.folder / f"{name}.disk"
            disk.mkdir()
            command = [
                "unshare",
                "--mount",
                "sh",
                "-c",
                'mount --bind "$0" /fsdl-storage && mount --bind "$1" /fsdl && shift && exec "$@"',
                str(self.bucket),
                str(disk),
                *command,
            ]
        with open(self.folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=kept | given,
                cwd="/",
                start_new_session=True,
            )
        self.processes[name] = process, grace

        def placed(found):
            found["spec"]["nodeName"], found["status"] = (
                node,
                {
                    "phase": "Running",
                    "conditions": [condition("PodScheduled"), condition("Ready")],
                    "containerStatuses": [_status({"running": {}})],
                },
            )

        self.api.update(f"{PODS}/{name}", placed)

    def _ended(self, pod: dict, code: int) -> None:
        "Write a pod's end."
        if pod["status"].get("phase") in ("Succeeded", "Failed"):
            return
        _signal(
            self.processes[pod["metadata"]["name"]][0], signal.SIGKILL
        )  # a container's end is the end of all its processes
        code = 128 - code if code < 0 else code
        ended = _status({"terminated": {"exitCode": code, "reason": "Completed" if code == 0 else "Error"}})
        self.api.update(
            f"{PODS}/{pod['metadata']['name']}",
            lambda found: found["status"].update(
                phase="Succeeded" if code == 0 else "Failed", containerStatuses=[ended]
            ),
        )


def _status(state: dict) -> dict:
    "A container's status."
    return {
        "name": "node",
        "image": "",
        "imageID": "",
        "ready": "running" in state,
        "restartCount": 0,
        "state": state,
    }


def _owner(item: dict) -> str | None:
    "The uid of an object's owner."
    return next((owner["uid"] for owner in item["metadata"].get("ownerReferences") or ()), None)


def _signal(process: subprocess.Popen, number: int, group: bool = True) -> None:
    "Tell a pod's process, or all of them."
    try:
        (os.killpg if group else os.kill)(process.pid, number)
    except (OSError, ProcessLookupError):
        pass
