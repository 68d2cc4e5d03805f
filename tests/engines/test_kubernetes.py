"""Kubernetes: manifests by the published schemas, requests to an API server, runs whose pods are real
processes.

The API server is a stand-in: see kube_api_server.py.
"""

import itertools
import json
import sys
import time
from pathlib import Path

import pytest
import yaml
from following import ended_by_one_look, until
from kube_api_server import start_api
from kube_nodes import Nodes, condition
from kube_schemas import problems

import fsdl_dev
from fsdl_dev.core.errors import FsdlError
from fsdl_dev.core.job import Job, Resources
from fsdl_dev.core.states import FINAL
from fsdl_dev.engines.contract import EngineContract
from fsdl_dev.engines.kubernetes.client import (
    KubeApi,
    KubeError,
    create_object,
    delete_object,
    list_objects,
)
from fsdl_dev.engines.kubernetes.fields import KubernetesFields, object_name
from fsdl_dev.engines.kubernetes.script import KubeRun, manifests
from fsdl_dev.engines.remote.script_parts import to_yaml

IMAGE = "registry.example/team/train@sha256:" + "0" * 64
RUN = KubeRun(
    "20261121-075212345-brave-otter",
    nodes=2,
    gpus=8,
    seconds=7200,
    project="lab",
    owner="Ada L.",
    title="train.ipynb: fit",
    command=("sh", "/mnt/runs/x/start.sh"),
)
FULL = {
    "image": IMAGE,
    "storage": "pvc:team-runs/fsdl",
    "storage_here": "/mnt/team/fsdl",
    "queue": "team-a",
    "priority": "high",
    "cpus": "16",
    "memory": "200Gi",
    "env": {"A": "1"},
    "env_secrets": {"KEY": "wandb/key"},
    "tolerations": ("dedicated=ml:NoSchedule", "spot"),
    "image_pull_secrets": ("pull",),
    "service_account": "runner",
    "user": "1000:1000",
    "node_selector": {"zone": "a"},
    "mounts": ("pvc:data/imagenet:/data:ro", "host:/scratch:/scratch"),
}


# ---- manifests by the published schemas


@pytest.mark.parametrize("kind", ["job", "jobset", "trainjob"])
def test_manifests_fit_the_published_schemas(kind):
    runs = [RUN, KubeRun("20261121-075212345-brave-otter"), KubeRun("r" * 90, gpus=1, seconds=60.5)]
    choices = [FULL, {"image": IMAGE, "storage": "pvc:a"}, {"image": "x:v1", "storage": "gs://bucket/fsdl"}]
    if kind != "trainjob":
        choices += [
            FULL
            | {
                "secrets": ("wandb",),
                "scheduler": "mine",
                "pod": {"priorityClassName": "high", "hostIPC": True},
            }
        ]
    for run, values in itertools.product(runs, choices):
        documents = manifests(kind, run, KubernetesFields(**values), {"nvidia.com/gpu.product": "H100"})
        for document in documents:
            assert problems(document) == [], document
            assert len(document["metadata"]["name"]) <= 46 and all(
                len(value) <= 63 for value in document["metadata"]["labels"].values()
            )
        assert list(yaml.load_all(to_yaml(*documents), yaml.CSafeLoader)) == json.loads(json.dumps(documents))


@pytest.mark.parametrize(("kind", "nodes"), [("job", 1), ("job", 3), ("jobset", 3)])
def test_what_starts_a_run_anew(kind, nodes):
    """A lost node and status 85 do, any other status does not: by the order of the rules, as their
    documentation says they are read.
    """
    spec = manifests(
        kind, KubeRun("r", nodes=nodes), KubernetesFields(image=IMAGE, storage="pvc:a", max_restarts=2)
    )[0]["spec"]
    job = spec if kind == "job" else spec["replicatedJobs"][0]["template"]["spec"]

    def action(code: int, taken: bool = False) -> str:
        for rule in job["podFailurePolicy"]["rules"]:
            codes = rule.get("onExitCodes")
            if (taken and "onPodConditions" in rule) or (
                codes and (code in codes["values"]) == (codes["operator"] == "In")
            ):
                return rule["action"]
        return "Count"

    again = {"job": "Count", "jobset": "FailJob"}[
        kind
    ]  # the JobSet restarts itself where its Job failed by its own policy
    assert (action(143, taken=True), action(85), action(85, taken=True)) == (again, again, again)
    assert (
        action(1) == {"job": "FailJob", "jobset": "Count"}[kind]
        and job["backoffLimit"] == {"job": 2 * nodes, "jobset": 0}[kind]
    )
    if kind == "jobset":
        assert spec["failurePolicy"]["maxRestarts"] == 2
        assert {rule["action"]: rule["onJobFailureReasons"] for rule in spec["failurePolicy"]["rules"]} == {
            "RestartJobSet": ["PodFailurePolicy"],
            "FailJobSet": ["BackoffLimitExceeded", "DeadlineExceeded"],
        }


def test_a_misspelt_field_would_be_found():
    [document] = manifests("jobset", RUN, KubernetesFields(**FULL))
    document["spec"]["failurePolicy"]["maxRestart"] = 1
    assert "maxRestart" in problems(document)[0]
    [document] = manifests("trainjob", RUN, KubernetesFields(**FULL))
    document["spec"]["trainer"]["numNodes"] = "two"
    assert "spec.trainer.numNodes" in problems(document)[0]


# ---- requests


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    "An API server with every custom resource."
    served = start_api(tmp_path_factory.mktemp("kube"))
    try:
        served.install("jobsets", "trainjobs", "workloads", "localqueues")
        yield served
    finally:
        served.stop()


@pytest.fixture
def cluster(api):
    "Our own connection to it."
    return KubeApi(str(api.kubeconfig), where="[tool.fsdl_dev.targets.cluster]")


@pytest.mark.parametrize("kind", ["job", "jobset", "trainjob"])
def test_objects_are_made_once_listed_and_deleted(api, cluster, kind):
    run = KubeRun(f"20261121-075212345-once-{kind}", nodes=2, project="once")
    first, *others = manifests(kind, run, KubernetesFields(**FULL | {"namespace": "team"}))
    made, there = create_object(cluster, first)
    again, found = create_object(cluster, first)
    assert (there, found) == (False, True) and made.uid == again.uid
    for document in others:
        create_object(cluster, document)
    assert made.spec["suspend"] is True and cluster.namespace == "team" and cluster.context == "test"
    named = [
        item.name
        for item in list_objects(cluster, first["apiVersion"], first["kind"], "team", "fsdl-dev/project=once")
    ]
    assert named == [run.name]
    assert list_objects(cluster, first["apiVersion"], first["kind"], "team", "fsdl-dev/project=twice") == []
    assert delete_object(cluster, first["apiVersion"], first["kind"], run.name) is True
    left = api.request(
        "GET", f"/apis/{first['apiVersion']}/namespaces/team/{first['kind'].lower()}s/{run.name}"
    )
    assert left["metadata"]["deletionTimestamp"] and left["metadata"]["finalizers"] == [
        "foregroundDeletion"
    ]  # waits for its pods
    assert delete_object(cluster, first["apiVersion"], first["kind"], "fsdl-none") is False


def test_the_server_knows_every_field(cluster):
    [first] = manifests("job", KubeRun("20261121-075212345-strict-one"), KubernetesFields(**FULL))
    first["spec"]["template"]["spec"]["containers"][0]["shm"] = "8Gi"
    with pytest.raises(KubeError) as refused:
        create_object(cluster, first)
    assert (
        "refused the manifest" in refused.value.what
        and "shm" in refused.value.what
        and "--dry-run" in refused.value.fix
    )


def test_what_the_cluster_has(cluster, api):
    assert (
        cluster.versions("jobset.x-k8s.io") == ["v1alpha2"]
        and cluster.versions("nobody.example") == []
        and cluster.versions("batch") == ["v1"]
    )
    assert list_objects(cluster, "nobody.example/v1", "Job", "team") == []


def test_an_api_server_that_restarts_is_waited_for(tmp_path):
    served = start_api(tmp_path)
    cluster = KubeApi(str(served.kubeconfig), where="here")
    failures = iter([503, 503, 429])
    served.server.refuse.append(
        lambda method, path: (code, {"message": "busy"}) if (code := next(failures, None)) else None
    )
    try:
        assert list_objects(cluster, "v1", "Pod", "team") == []
    finally:
        served.stop()


RESTRICTED = (
    'violates PodSecurity "restricted:latest": runAsNonRoot != true (pod or container "node" must set'
    " securityContext.runAsNonRoot=true)"
)


@pytest.mark.parametrize(
    ("status", "message", "said"),
    [
        (401, "Unauthorized", "does not accept the login"),
        (
            403,
            (
                'jobs.batch is forbidden: User "ada" cannot create resource "jobs" in API group "batch" in'
                ' the namespace "team"'
            ),
            "auth can-i create jobs",
        ),
        (
            403,
            (
                'jobs.batch "x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=8,'
                " used: requests.nvidia.com/gpu=12, limited: requests.nvidia.com/gpu=16"
            ),
            "4 left",
        ),
        (403, f'pods "x" is forbidden: {RESTRICTED}', "--set user=1000:1000"),
        (400, 'admission webhook "policy.example" denied the request: no owner label', "no owner label"),
        (400, 'strict decoding error: unknown field "spec.runtimePatches"', "--set object=jobset"),
    ],
)
def test_refusals_in_plain_words(tmp_path, status, message, said):
    served = start_api(tmp_path)
    served.server.refuse.append(
        lambda method, path: (
            (status, {"kind": "Status", "message": message, "reason": "x"}) if method == "POST" else None
        )
    )
    try:
        with pytest.raises(KubeError) as refused:
            create_object(
                KubeApi(str(served.kubeconfig), where="here"),
                manifests("job", KubeRun("r"), KubernetesFields(**FULL))[0],
            )
        assert said in str(refused.value) and refused.value.status == status
    finally:
        served.stop()


def test_a_conflict_over_the_quota_is_tried_again(tmp_path):
    served = start_api(tmp_path)
    message = (
        'Operation cannot be fulfilled on resourcequotas "gpus": the object has been modified; please apply'
        " your changes to the latest version and try again"
    )
    answers = iter([message, message])
    served.server.refuse.append(
        lambda method, path: (
            (409, {"kind": "Status", "message": said, "reason": "Conflict"})
            if method == "POST" and (said := next(answers, ""))
            else None
        )
    )
    try:
        cluster, document = (
            KubeApi(str(served.kubeconfig), where="here"),
            manifests("job", KubeRun("r"), KubernetesFields(**FULL))[0],
        )
        made, there = create_object(cluster, document)
        assert made.uid and not there
        answers = itertools.repeat(message)
        with pytest.raises(KubeError, match="resourcequotas") as refused:
            create_object(cluster, document, patience=0)
        assert refused.value.status == 409 and refused.value.reason == "Conflict"
    finally:
        served.stop()


# ---- runs: the target, the API and nodes whose pods are processes


def a_target(tmp_path: Path, served, **fields):
    "A target on a running API, and its project."
    from fsdl_dev.engines.contract import contract_project
    from fsdl_dev.engines.target import get_target

    values = {
        "kind": "kubernetes",
        "kubeconfig": str(served.kubeconfig),
        "image": IMAGE,
        "storage": "pvc:team-runs/fsdl",
        "storage_here": str(tmp_path / "claim"),
        "python": sys.executable,
        "grace_seconds": 5.0,
        **fields,
    }
    project = contract_project(
        tmp_path / "prøject döt",
        "cluster",
        {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()},
    )
    target = get_target("cluster", project)
    target.is_test = True
    return target, project


def test_dry_run_prints_what_would_be_made(api, tmp_path):
    target, project = a_target(tmp_path, api, object="jobset", queue="")
    job = Job(
        kind="script", name="once.py", script="once.py", resources=Resources(nodes=2, gpus=0, time="2h")
    )
    text = target.plan(job, project)
    [document] = yaml.safe_load_all(text)
    assert problems(document) == [] and document["kind"] == "JobSet" and "no gang scheduling" in text
    command = document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0][
        "command"
    ]
    assert command == ["sh", f"{tmp_path}/claim/runs/RUN/start.sh"]


def test_what_the_cluster_can_never_run(api, tmp_path):
    served = api
    for name, labels, count in (
        ("gpu-1", {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}, 8),
        ("gpu-2", {"cloud.google.com/gke-accelerator": "nvidia-l4"}, 1),
    ):
        served.request(
            "POST",
            "/api/v1/nodes",
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": f"{name}-{tmp_path.name[:20].replace('_', '-')}", "labels": labels},
                "status": {"allocatable": {"nvidia.com/gpu": str(count)}, "conditions": [condition("Ready")]},
            },
        )

    def refusal(resources: Resources, **fields) -> str:
        target, project = a_target(tmp_path / str(len(list(tmp_path.iterdir()))), served, **fields)
        with pytest.raises(FsdlError) as refused:
            target.admit(Job(kind="script", name="x", script="once.py", resources=resources), project)
        assert refused.value.fix
        return str(refused.value)

    assert "at most 8 on a node" in refusal(Resources(gpus=16))
    assert "at most 1 on a node" in refusal(Resources(gpus=2), gpu_type="L4")
    assert "No node has a GPU called 'A100'" in refusal(Resources(gpus=1), gpu_type="A100")
    (
        served.request(
            "POST",
            "/apis/kueue.x-k8s.io/v1beta1/namespaces/team/localqueues",
            {
                "apiVersion": "kueue.x-k8s.io/v1beta1",
                "kind": "LocalQueue",
                "metadata": {"name": "team-a"},
                "spec": {"clusterQueue": "all"},
            },
        )
        if not served.items("/apis/kueue.x-k8s.io/v1beta1/namespaces/team/localqueues")
        else None
    )
    assert "Did you mean 'team-a'?" in refusal(Resources(gpus=0), queue="team-aa")
    target, project = a_target(tmp_path / "fits", served, gpu_type="H100", object="job")
    look = target.look()
    assert (
        look.reachable
        and look.gpus >= 9
        and look.gpus_free == look.gpus
        and any("queue team-a" in note for note in look.notes)
    )
    text = target.plan(Job(kind="script", name="x", script="once.py", resources=Resources(gpus=8)), project)
    assert yaml.safe_load(text)["spec"]["template"]["spec"]["nodeSelector"] == {
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"
    }


def test_a_cluster_that_starts_gpu_nodes_by_itself(api, tmp_path):
    target, project = a_target(tmp_path, api, object="job", gpu_type="example.com/gpu=b300")
    job = Job(kind="script", name="x", script="once.py")
    target.admit(job, project)  # no node has that label now, and some may come
    text = target.plan(job, project)
    pod = yaml.safe_load(text)["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"example.com/gpu": "b300"} and pod["containers"][0]["resources"][
        "limits"
    ] == {"nvidia.com/gpu": "1"}  # gpu_type means a GPU for each process
    assert "# 1 × 1 GPUs on nodes with example.com/gpu=b300 are not there just now" in text
    from fsdl_dev.core.events import read_events
    from fsdl_dev.engines.contract import submit_job

    run = submit_job(target, project, "once.py")
    assert any(
        "waits until the cluster adds nodes" in event["text"]
        for event in read_events(run.events)
        if event["kind"] == "note"
    )
    scaled, _ = a_target(tmp_path / "scaled", api, object="job", autoscaled=True)
    scaled.admit(
        Job(kind="script", name="x", script="once.py", resources=Resources(gpus=64, nodes=2)), project
    )
    without, project = a_target(tmp_path / "without", api, object="job", gpu_resource="")
    with pytest.raises(FsdlError, match="says that its cluster has none") as refused:
        without.admit(Job(kind="script", name="x", script="once.py", resources=Resources(gpus=2)), project)
    assert refused.value.fix.startswith("--gpus 0")
    without.admit(Job(kind="script", name="x", script="once.py", resources=Resources(gpus=0)), project)


def test_a_trainjob_says_what_it_does_not_keep(api, tmp_path):
    target, project = a_target(tmp_path, api, object="trainjob", max_restarts=5)
    text = target.plan(Job(kind="script", name="x", script="once.py", resources=Resources(gpus=0)), project)
    assert "max_restarts = 5 has no effect" in text and yaml.safe_load(text)["metadata"]["annotations"][
        "fsdl-dev/keep"
    ] == str(7 * 86400)


@pytest.fixture
def nodes(tmp_path):
    "A small cluster of its own: an API, and nodes that run pods."
    served = start_api(tmp_path / "kube")
    served.install("jobsets", "trainjobs", "workloads", "localqueues")
    (tmp_path / "kube" / "pods").mkdir()
    cluster = Nodes(served, tmp_path / "kube" / "pods", ("TrainJob", "JobSet", "Job"))
    try:
        yield served, cluster
        assert cluster.errors == []
    finally:
        cluster.stop()
        served.stop()


@pytest.mark.parametrize("kind", ["job", "jobset", "trainjob"])
def test_a_run_in_the_cluster(nodes, tmp_path, kind):
    from fsdl_dev.engines.contract import submit_job, wait_for

    served, cluster = nodes
    target, project = a_target(tmp_path, served, object=kind)
    run = submit_job(
        target, project, "hällo wörld.py", "ä ö", "$HOME `x`", resources=Resources(time="5m", gpus=0)
    )
    assert wait_for(target, run, seconds=300)["state"] == "succeeded", run.last_state()
    assert target.logs(run)[0] == "grüße ä ö $HOME `x`\n"
    engine = json.loads((run.path / "engine.json").read_text())
    assert engine["object"] == kind and engine["id"].startswith("fsdl-2")
    target.fetch(run, ["work/ergebnis ü.txt"])
    assert (run.path / "work" / "ergebnis ü.txt").read_text(encoding="utf-8") == "größe"


LIVES = (
    "import os, time\nname = 'lives' + os.environ.get('RANK', '0')\nopen(name, 'a').write('life\\n')\nlives ="
    " len(open(name).readlines())\nprint('life', lives, flush=True)\ntime.sleep(600 if lives == 1 else 0)\n"
)


@pytest.mark.tier("long", "job-*", "jobset-follower")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "index", "hard"),
    [
        ("job", 1, False),
        ("jobset", 1, False),
        ("job", 1, True),
        ("jobset", 0, True),
        ("job", 0, False),
        ("job", 0, True),
    ],
    ids=[
        "job-follower",
        "jobset-follower",
        "job-follower-dead",
        "jobset-lead-dead",
        "job-lead",
        "job-lead-dead",
    ],
)
def test_a_lost_machine_starts_the_whole_gang_anew(nodes, tmp_path, kind, index, hard):
    from fsdl_dev.engines.contract import submit_job, wait_for

    served, cluster = nodes
    target, project = a_target(tmp_path, served, object=kind)
    (project.root / "lives.py").write_text(LIVES)
    run = submit_job(target, project, "lives.py", resources=Resources(nodes=2, gpus=0))
    wait_for(
        target, run, seconds=300, until=lambda: all("life 1" in target.logs(run, rank)[0] for rank in (0, 1))
    )
    cluster.evict(object_name(run.id), index, hard)
    assert wait_for(target, run, seconds=300)["state"] == "succeeded", run.last_state()
    assert all(target.logs(run, rank)[0].split("\n")[:2] == ["life 1", "life 2"] for rank in (0, 1))


@pytest.mark.tier("long", "jobset")
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["job", "jobset"])
def test_time_is_over_and_the_run_goes_on(nodes, tmp_path, kind):
    from fsdl_dev.engines.contract import submit_job, wait_for

    served, cluster = nodes
    target, project = a_target(tmp_path, served, object=kind)
    (project.root / "lives.py").write_text(LIVES)
    run = submit_job(target, project, "lives.py", resources=Resources(gpus=0, time="15s"))
    assert wait_for(target, run, seconds=300)["state"] == "succeeded", run.last_state()
    assert "life 2" in target.logs(run)[0]


@pytest.mark.tier("contract", "test_killed_worker", "test_gang_of_two_nodes")
@pytest.mark.tier("smoke", "test_launch_and_non_ascii_and_fetch", "test_requeue_keeps_the_run")
@pytest.mark.slow
class TestKubernetesContract(EngineContract):
    "What every target passes, in a JobSet."

    name = "cluster"
    crowd = 40
    seconds = 300.0

    @pytest.fixture(autouse=True)
    def _cluster(self, tmp_path):
        served = start_api(tmp_path / "kube")
        served.install("jobsets")
        (tmp_path / "kube" / "pods").mkdir()
        self.api, self.claim = served, tmp_path / "claim"
        self.nodes = Nodes(served, tmp_path / "kube" / "pods", ("JobSet", "Job"))
        try:
            yield
            assert self.nodes.errors == []
        finally:
            self.nodes.stop()
            served.stop()

    def fields(self) -> dict:
        return {
            "kind": "kubernetes",
            "kubeconfig": str(self.api.kubeconfig),
            "image": IMAGE,
            "storage": "pvc:team-runs/fsdl",
            "storage_here": str(self.claim),
            "python": sys.executable,
            "grace_seconds": 5.0,
        }

    def kill_worker(self, run) -> None:
        self.nodes.process_of(object_name(run.id)).kill()

    def requeue(self, run) -> None:
        self.nodes.evict(object_name(run.id))


@pytest.fixture
def mount_points():
    "The two places that a pod with a bucket has, on a machine where the tests may mount."
    import os
    import subprocess

    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("a pod's own file system takes the right to mount: run as root")
    made = [path for path in (Path("/fsdl-storage"), Path("/fsdl")) if not path.exists()]
    for path in made:
        path.mkdir()
    yield
    for path in made:
        path.rmdir()


def with_bucket(nodes, folder: Path) -> tuple:
    """The cluster, a target whose storage is a bucket, and its project."""
    served, cluster = nodes
    cluster.bucket = folder / "bucket"
    cluster.bucket.mkdir()
    return cluster, *a_target(folder, served, storage_here=f"file://{cluster.bucket}")


@pytest.mark.slow
def test_a_run_whose_storage_is_a_bucket(nodes, tmp_path, mount_points):
    from fsdl_dev.engines.contract import submit_job, wait_for

    cluster, target, project = with_bucket(nodes, tmp_path)
    run = submit_job(target, project, "slow.py", resources=Resources(gpus=0))
    wait_for(target, run, {"running", *FINAL}, seconds=300)
    wait_for(target, run, seconds=300, until=lambda: "step 3" in target.logs(run)[0])
    assert run.state() == "running" and (cluster.bucket / "runs" / run.id / "uplink.sh").exists()
    target.cancel(run)
    assert wait_for(target, run, seconds=300)["state"] == "cancelled", run.last_state()


@pytest.mark.slow
def test_a_bucket_that_takes_each_file_once(nodes, tmp_path, mount_points):
    from fsdl_dev.engines.contract import submit_job, wait_for

    cluster, target, project = with_bucket(nodes, tmp_path)
    with cluster.paused():
        run = submit_job(target, project, "slow.py", resources=Resources(gpus=0))
        (cluster.bucket / "runs" / run.id / ".overwrite.0").mkdir()  # cannot be written, even by root
    last = wait_for(target, run, seconds=300)
    assert last["state"] == "failed" and "allow-overwrite" in last["reason"]


# ---- what the cluster says of runs: statuses written as its controllers would


def a_pod(api, run, index: int, status: dict, node: str | None = None) -> str:
    "A pod of a run, with a status; its path."
    name = f"{object_name(run.id)}-{index}-x"
    api.request(
        "POST",
        "/api/v1/namespaces/team/pods",
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"fsdl-dev/run": run.id, "fsdl-dev/project": "contract"}},
            "spec": {
                "containers": [{"name": "node", "image": IMAGE}],
                **({"nodeName": node} if node else {}),
            },
            "status": status,
        },
    )
    return f"/api/v1/namespaces/team/pods/{name}"


def test_why_a_run_waits(api, tmp_path):
    from fsdl_dev.engines.contract import submit_job

    if not api.items("/apis/kueue.x-k8s.io/v1beta1/namespaces/team/localqueues"):
        api.request(
            "POST",
            "/apis/kueue.x-k8s.io/v1beta1/namespaces/team/localqueues",
            {
                "apiVersion": "kueue.x-k8s.io/v1beta1",
                "kind": "LocalQueue",
                "metadata": {"name": "team-a"},
                "spec": {},
            },
        )
    target, project = a_target(tmp_path, api, object="job", queue="team-a")
    run = submit_job(target, project, "once.py", resources=Resources(gpus=0))
    path = f"/apis/batch/v1/namespaces/team/jobs/{object_name(run.id)}"

    def said():
        return target.engine.poll([run])[run.id]

    assert (
        said().state == "queued" and "nothing in this cluster" in said().reason
    )  # Kueue has not seen it yet
    uid = api.request("GET", path)["metadata"]["uid"]
    workload = {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "Workload",
        "metadata": {
            "name": f"job-{run.id}",
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "x", "uid": uid}],
        },
        "spec": {"queueName": "team-a"},
    }
    api.request("POST", "/apis/kueue.x-k8s.io/v1beta1/namespaces/team/workloads", workload)
    message = (
        "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu in flavor"
        " h100, 8 more needed"
    )
    api.update(
        f"/apis/kueue.x-k8s.io/v1beta1/namespaces/team/workloads/job-{run.id}",
        lambda found: found.update(
            status={"conditions": [condition("QuotaReserved", "Pending", message, "False")]}
        ),
    )
    assert (
        said().reason == "the queue team-a has too little quota: 8 GPUs are missing in h100"
        and message in said().engine_reason
    )
    api.update(
        f"/apis/kueue.x-k8s.io/v1beta1/namespaces/team/workloads/job-{run.id}",
        lambda found: found.update(
            status={"conditions": [condition("QuotaReserved"), condition("Admitted")]}
        ),
    )
    api.update(path, lambda found: found["spec"].update(suspend=False))
    busy = {
        "phase": "Pending",
        "conditions": [
            condition(
                "PodScheduled",
                "Unschedulable",
                "0/4 nodes are available: 4 Insufficient nvidia.com/gpu.",
                "False",
            )
        ],
    }
    pod = a_pod(api, run, 0, busy)
    assert said().reason == "GPUs are all in use or too few on 4 of 4 nodes"
    waiting = {
        "phase": "Pending",
        "containerStatuses": [
            {
                "name": "node",
                "image": "",
                "imageID": "",
                "ready": False,
                "restartCount": 0,
                "state": {"waiting": {"reason": "ErrImagePull", "message": "pull access denied"}},
            }
        ],
    }
    api.update(pod, lambda found: found.update(status=waiting))
    assert "asks for a login" in said().reason
    api.update(
        pod,
        lambda found: found.update(status={"phase": "Running"}, spec={**found["spec"], "nodeName": "gpu-7"}),
    )
    assert said().state == "running" and said().nodes == ("gpu-7",)
    killed = {
        "phase": "Failed",
        "containerStatuses": [
            {
                "name": "node",
                "image": "",
                "imageID": "",
                "ready": False,
                "restartCount": 0,
                "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
            }
        ],
    }
    api.update(pod, lambda found: found.update(status=killed))
    api.update(
        path,
        lambda found: found.update(
            status={"conditions": [condition("Failed", "PodFailurePolicy", "Container node failed")]}
        ),
    )
    assert (
        said().final == "failed" and "more memory than its limit" in said().reason and said().exit_code == 137
    )


@pytest.mark.parametrize(
    ("why", "said"),
    [
        (
            "exceeded quota: team-gpus, requested: requests.nvidia.com/gpu=8, used: requests.nvidia.com/gpu=12,"
            " limited: requests.nvidia.com/gpu=16",
            "the quota team-gpus of the namespace is exceeded: 8 nvidia.com/gpu asked, 12 of 16 in use, 4 left",
        ),
        (RESTRICTED, 'a user other than root, given as a number: user = "1000:1000"'),
    ],
    ids=["quota", "root"],
)
def test_why_no_pod_is_made_shows_in_events_only(api, tmp_path, why, said):
    from fsdl_dev.engines.contract import submit_job

    target, project = a_target(tmp_path, api, object="job")
    run = submit_job(target, project, "once.py", resources=Resources(gpus=0))
    name = object_name(run.id)
    message = f'Error creating: pods "{name}-0-x" is forbidden: {why}'
    api.request(
        "POST",
        "/api/v1/namespaces/team/events",
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{name}.1"},
            "reason": "FailedCreate",
            "message": message,
            "type": "Warning",
            "involvedObject": {"kind": "Job", "name": name, "namespace": "team"},
        },
    )
    told = target.engine.poll([run])[run.id]
    assert told.state == "queued" and said in told.reason


def test_a_waiting_run_is_cancelled(api, tmp_path):
    from fsdl_dev.engines.contract import submit_job, wait_for

    target, project = a_target(tmp_path, api, object="jobset")
    run = submit_job(target, project, "once.py", resources=Resources(gpus=0))
    target.cancel(run)
    assert api.request(
        "GET", f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/team/jobsets/{object_name(run.id)}"
    )["metadata"]["deletionTimestamp"]
    assert wait_for(target, run, seconds=300)["state"] == "cancelled"


def test_a_run_that_somebody_deleted(api, tmp_path):
    from fsdl_dev.engines.contract import submit_job, wait_for

    target, project = a_target(tmp_path, api, object="job")
    run = submit_job(target, project, "once.py", resources=Resources(gpus=0))
    api.request(
        "DELETE",
        f"/apis/batch/v1/namespaces/team/jobs/{object_name(run.id)}",
        {"propagationPolicy": "Background"},
    )
    last = wait_for(target, run, seconds=300)
    assert last["state"] == "lost" and "gone from the cluster" in last["reason"]


def moved(tmp_path: Path, served, **context) -> str:
    "The kubeconfig with another default: a namespace, or a cluster."
    config = json.loads(served.kubeconfig.read_text())
    config["clusters"].append({"name": "other", "cluster": {"server": "http://127.0.0.1:9"}})
    config["contexts"].append(
        {"name": "elsewhere", "context": {"cluster": "test", "user": "test", "namespace": "team", **context}}
    )
    config["current-context"] = "elsewhere"
    (tmp_path / "moved").write_text(json.dumps(config))
    return str(tmp_path / "moved")


@pytest.mark.parametrize(
    "context",
    [{"namespace": "private"}, {"cluster": "other", "namespace": "private"}],
    ids=["namespace", "cluster"],
)
def test_another_default_namespace_or_cluster_loses_no_run(api, tmp_path, context):
    from fsdl_dev.engines.contract import submit_job
    from fsdl_dev.engines.kubernetes.target import KubernetesEngine

    target, project = a_target(tmp_path, api, object="job")
    run = submit_job(target, project, "once.py", resources=Resources(gpus=0))
    today = KubernetesEngine(
        project, "cluster", {**target.engine.given, "kubeconfig": moved(tmp_path, api, **context)}
    )
    assert today.api.namespace == "private" and today.poll([run])[run.id].state == "queued"
    today.cancel(run, today.record(run))
    assert api.request("GET", f"/apis/batch/v1/namespaces/team/jobs/{object_name(run.id)}")["metadata"][
        "deletionTimestamp"
    ]


def test_a_cluster_that_no_login_leads_to(api, tmp_path):
    from fsdl_dev.core.rundir import read_json, write_json
    from fsdl_dev.engines.contract import submit_job

    target, project = a_target(tmp_path, api, object="job")
    run, other = (submit_job(target, project, "once.py", resources=Resources(gpus=0)) for _ in range(2))
    write_json(
        run.path / "engine.json",
        {**read_json(run.path / "engine.json"), "server": "https://10.0.0.1:6443", "uid": "another"},
    )
    for ask in (
        lambda: target.engine.poll([run]),
        lambda: target.engine.cancel(run, target.engine.record(run)),
    ):
        with pytest.raises(FsdlError, match="10.0.0.1:6443, and this login leads to") as refused:
            ask()
        assert "context = " in refused.value.fix
    assert {name: said.state for name, said in target.engine.poll([run, other]).items()} == {
        run.id: "running",
        other.id: "queued",
    }  # it keeps no other from its answer
    write_json(
        run.path / "engine.json",
        {**read_json(run.path / "engine.json"), "uid": target.engine.find(run.id).uid},
    )
    assert (
        target.engine.poll([run])[run.id].state == "queued"
    )  # the same cluster by another address: the object is there


def test_another_name_of_the_project_loses_no_run(api, tmp_path):
    from dataclasses import replace

    from fsdl_dev.core.rundir import read_json, write_json
    from fsdl_dev.engines.contract import submit_job
    from fsdl_dev.engines.kubernetes.target import KubernetesEngine

    target, project = a_target(tmp_path, api, object="job")
    run = submit_job(target, project, "once.py", resources=Resources(gpus=0))
    a_pod(api, run, 0, {"phase": "Running"}, "gpu-7")
    renamed = KubernetesEngine(replace(project, name="another"), "cluster", target.engine.given)
    assert renamed.poll([run])[run.id].nodes == ("gpu-7",)
    record = read_json(run.path / "engine.json")
    del record["project"], record["server"]  # as launchers wrote it before
    write_json(run.path / "engine.json", record)
    assert renamed.poll([run])[run.id].nodes == ("gpu-7",)


def test_a_kind_that_the_cluster_does_not_know_any_more(tmp_path):
    from fsdl_dev.engines.contract import submit_job

    served = start_api(tmp_path / "kube")
    served.install("jobsets")
    try:
        target, project = a_target(tmp_path, served, object="jobset")
        run = submit_job(target, project, "once.py", resources=Resources(gpus=0))
        served.server.groups.remove("jobset.x-k8s.io")  # its operator is being installed anew
        assert (
            target.engine.poll([run])[run.id].state == "unknown"
            and "JobSet" in target.engine.poll([run])[run.id].reason
        )
    finally:
        served.stop()


def test_an_old_trainjob_is_deleted(api, tmp_path):
    from fsdl_dev.engines.contract import submit_job

    target, project = a_target(tmp_path, api, object="trainjob", keep="1d")
    old, new, runs = (submit_job(target, project, "once.py", resources=Resources(gpus=0)) for _ in range(3))
    for run, ended in ((old, time.time() - 2 * 86400), (new, time.time() - 3600)):
        end = condition("Complete") | {
            "lastTransitionTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ended))
        }
        api.update(
            f"/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs/{object_name(run.id)}",
            lambda found, end=end: found.update(status={"conditions": [end]}),
        )
    target.engine.poll([runs])
    gone = [
        bool(
            api.request(
                "GET", f"/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs/{object_name(run.id)}"
            )["metadata"].get("deletionTimestamp")
        )
        for run in (old, new, runs)
    ]
    assert gone == [True, False, False]


def test_one_look_says_that_a_run_was_lost_and_when(api, tmp_path):
    "The cluster dates the end, long before anybody looked."
    from fsdl_dev.engines.contract import submit_job
    from fsdl_dev.engines.target import get_target

    target, project = a_target(tmp_path, api, object="job")
    run, at = submit_job(target, project, "once.py", resources=Resources(gpus=0)), int(time.time()) - 3600
    end = condition("Failed", reason="BackoffLimitExceeded", message="its node was lost")
    end["lastTransitionTime"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
    path = f"/apis/batch/v1/namespaces/team/jobs/{object_name(run.id)}"
    api.update(path, lambda found: found.update(status={"conditions": [end]}))
    last = ended_by_one_look(get_target("cluster", project), run)
    assert (last["state"], last["ended"]) == ("failed", at) and "its node was lost" in last["reason"], last


@pytest.mark.parametrize(
    "waiting",
    [
        {"reason": "ImagePullBackOff", "message": "not found"},
        {"reason": "CreateContainerConfigError", "message": 'secret "wandb" not found'},
        {
            "reason": "CreateContainerConfigError",
            "message": "container has runAsNonRoot and image has non-numeric user (app)",
        },
    ],
    ids=["image", "secret", "user"],
)
def test_a_pod_that_cannot_start_does_not_hold_its_node(api, tmp_path, waiting):
    from fsdl_dev.engines.contract import submit_job, wait_for

    target, project = a_target(tmp_path, api, object="job", give_up="2s")
    run = submit_job(target, project, "once.py", resources=Resources(gpus=0))
    stuck = {
        "phase": "Pending",
        "startTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "containerStatuses": [
            {
                "name": "node",
                "image": "",
                "imageID": "",
                "ready": False,
                "restartCount": 0,
                "state": {"waiting": waiting},
            }
        ],
    }
    a_pod(api, run, 0, stuck, "gpu-7")
    assert target.engine.poll([run])[run.id].state == "queued"  # it may be a moment's trouble
    last = wait_for(target, run, seconds=300)
    assert (
        last["state"] == "failed"
        and "held its node for 2s" in last["reason"]
        and any(
            words in last["reason"] for words in ("it is not there", "Secret wandb", 'user = "1000:1000"')
        )
    )
    assert api.request("GET", f"/apis/batch/v1/namespaces/team/jobs/{object_name(run.id)}")["metadata"][
        "deletionTimestamp"
    ]


def test_a_refused_companion_leaves_nothing(tmp_path):
    from fsdl_dev.engines.contract import submit_job

    served = start_api(tmp_path / "kube")
    try:
        target, project = a_target(tmp_path, served, object="job")
        services = {"status": 403}
        served.server.refuse.append(
            lambda method, path: (
                (
                    services["status"],
                    {"kind": "Status", "message": "services is forbidden", "reason": "Forbidden"},
                )
                if method == "POST" and path.endswith("/services") and services["status"]
                else None
            )
        )
        with pytest.raises(KubeError, match="services is forbidden"):
            submit_job(target, project, "once.py", resources=Resources(nodes=2, gpus=0))
        [left] = served.items("/apis/batch/v1/namespaces/team/jobs")
        assert left["metadata"]["deletionTimestamp"] and not served.items("/api/v1/namespaces/team/services")
        services["status"] = 0
        run = submit_job(target, project, "once.py", resources=Resources(nodes=2, gpus=0))
        served.request(
            "DELETE", f"/api/v1/namespaces/team/services/{object_name(run.id)}", {}
        )  # as if the launcher had died between the two
        record = target.engine.find(run.id)
        [service] = served.items("/api/v1/namespaces/team/services")
        assert service["metadata"]["ownerReferences"][0]["uid"] == record.uid
    finally:
        served.stop()


def test_without_the_right_to_see_queues(tmp_path):
    from fsdl_dev.engines.contract import submit_job

    served = start_api(tmp_path / "kube")
    served.install("workloads", "localqueues")
    served.server.refuse.append(
        lambda method, path: (
            (403, {"kind": "Status", "message": "forbidden", "reason": "Forbidden"})
            if "kueue" in path and path.count("/") > 3
            else None
        )
    )
    try:
        target, project = a_target(tmp_path, served, object="job", queue="team-a")
        look = target.look()
        assert look.reachable and "this user may not list Kueue's queues" in look.notes
        run = submit_job(target, project, "once.py", resources=Resources(gpus=0))
        said = target.engine.poll([run])[run.id]
        assert (
            said.state == "queued"
            and "may not read" in said.reason
            and "nothing in this cluster" not in said.reason
        )
    finally:
        served.stop()


def test_a_launcher_that_died_after_the_object_was_made(api, tmp_path):
    from fsdl_dev.engines.contract import submit_job

    target, project = a_target(tmp_path, api, object="job")
    run = submit_job(target, project, "once.py", resources=Resources(gpus=0))
    record = json.loads((run.path / "engine.json").read_text())
    assert (
        target.engine.find(run.id).uid == record["uid"]
        and target.engine.find("20260101-000000000-nobody") is None
    )
    job = Job(kind="script", name="once.py", script="once.py", resources=Resources(gpus=0))
    again = target.engine.submit(run, job, target.engine.far(run.id), "")
    assert again.uid == record["uid"]  # the same object


@pytest.mark.tier("long")
@pytest.mark.slow
def test_five_hundred_runs_are_three_questions(tmp_path):
    from fsdl_dev.core.rundir import RunDir

    served = start_api(tmp_path / "kube")
    served.install("workloads", "localqueues")
    try:
        target, _ = a_target(tmp_path, served, object="job", queue="team-a")
        runs = [RunDir(tmp_path / "runs" / f"20261121-0752{number:05d}-brave-otter") for number in range(500)]
        for run in runs:
            create_object(
                target.engine.api,
                manifests(
                    "job",
                    KubeRun(run.id, project="contract"),
                    KubernetesFields(**FULL | {"namespace": "team"}),
                )[0],
            )
        asked = []
        served.server.refuse.append(lambda method, path: asked.append(path))
        assert all(seen.state == "queued" for seen in target.engine.poll(runs).values())
        lists = [path for path in asked if path.count("/") > 3]
        assert len(lists) <= 3, lists
    finally:
        served.stop()


@pytest.mark.slow
def test_the_api_server_is_away_for_a_while(nodes, tmp_path):
    from fsdl_dev.engines.contract import submit_job, wait_for

    served, cluster = nodes
    target, project = a_target(tmp_path, served, object="job")
    run = submit_job(target, project, "slow.py", resources=Resources(gpus=0))
    wait_for(target, run, seconds=300, until=lambda: "step" in target.logs(run)[0])
    with cluster.paused():
        served.server.refuse.append(lambda method, path: (503, {"message": "etcdserver: leader changed"}))
        time.sleep(5)
        _, offset = target.logs(run)
        until(
            lambda: "step" in target.logs(run, 0, offset)[0], "for what the storage says and the API cannot"
        )
        assert target.poll(run) == "running"
        served.server.refuse.clear()
    target.cancel(run)
    assert wait_for(target, run, seconds=300)["state"] == "cancelled"


def test_a_dry_run_needs_no_kubeconfig(tmp_path, monkeypatch):
    """The manifest is printed and the cluster is not asked; a launch is refused."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "pyproject.toml").write_text(
        '[tool.fsdl_dev.targets.cluster]\nkind = "kubernetes"\nimage = "x"\nstorage = "pvc:runs"\n'
        f'storage_here = "{tmp_path}/storage"\n'
    )
    made = fsdl_dev.launch("train.py", folder=tmp_path, on="cluster", dry_run=True, say=None)
    assert "kind: Job" in made.plan and "image: x" in made.plan
    with pytest.raises(FsdlError, match="no kubeconfig"):
        fsdl_dev.launch("train.py", folder=tmp_path, on="cluster", say=None)
