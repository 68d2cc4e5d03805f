"""Kubernetes: manifests by the published schemas, requests to an API server, runs whose pods are real processes.

The API server is Kubernetes' own API machinery where it was built (tests/kube_api_server/build.sh), else a stand-in: see kube_api_server.py."""

import itertools
import json
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent))

from kube_api_server import real_api, start_api  # noqa: E402
from kube_nodes import Nodes, condition  # noqa: E402
from kube_schemas import problems  # noqa: E402

from fsdl_dev.core.errors import FsdlError  # noqa: E402
from fsdl_dev.core.events import read_events  # noqa: E402
from fsdl_dev.core.states import FINAL  # noqa: E402
from fsdl_dev.launch.job import Job, Resources  # noqa: E402
from fsdl_dev.targets.kube_api import KubeApi, KubeError, create_object, delete_object, list_objects  # noqa: E402
from fsdl_dev.targets.kube_manifests import KubeRun, manifests  # noqa: E402
from fsdl_dev.targets.kube_pod import KubernetesFields  # noqa: E402
from fsdl_dev.targets.yaml_text import to_yaml  # noqa: E402

SERVERS = [pytest.param(True, id="real", marks=pytest.mark.skipif(bool(real_api()), reason=real_api())), pytest.param(False, id="stand-in")]
IMAGE = "registry.example/team/train@sha256:" + "0" * 64
RUN = KubeRun("20261121-075212345-brave-otter", nodes=2, gpus=8, seconds=7200, project="lab", owner="Ada L.", title="train.ipynb: fit", command=("sh", "/mnt/runs/x/start.sh"))
FULL = {"image": IMAGE, "storage": "pvc:team-runs/fsdl", "storage_here": "/mnt/team/fsdl", "queue": "team-a", "priority": "high", "cpus": "16", "memory": "200Gi", "env": {"A": "1"},
        "env_secrets": {"KEY": "wandb/key"}, "tolerations": ("dedicated=ml:NoSchedule", "spot"), "image_pull_secrets": ("pull",), "service_account": "runner", "user": "1000:1000",
        "node_selector": {"zone": "a"}, "mounts": ("pvc:data/imagenet:/data:ro", "host:/scratch:/scratch")}


# ---- manifests by the published schemas


@pytest.mark.parametrize("kind", ["job", "jobset", "trainjob"])
def test_manifests_fit_the_published_schemas(kind):
    runs = [RUN, KubeRun("20261121-075212345-brave-otter"), KubeRun("r" * 90, gpus=1, seconds=60.5)]
    choices = [FULL, {"image": IMAGE, "storage": "pvc:a"}, {"image": "x:v1", "storage": "gs://bucket/fsdl"}]
    if kind != "trainjob":
        choices += [FULL | {"secrets": ("wandb",), "pod_group": True, "scheduler": "mine", "pod": {"priorityClassName": "high", "hostIPC": True}}]
    for run, values in itertools.product(runs, choices):
        documents = manifests(kind, run, KubernetesFields(**values), {"nvidia.com/gpu.product": "H100"})
        for document in documents:
            assert problems(document) == [], document
            assert len(document["metadata"]["name"]) <= 46 and all(len(value) <= 63 for value in document["metadata"]["labels"].values())
        assert list(yaml.safe_load_all(to_yaml(*documents))) == json.loads(json.dumps(documents))


def test_a_misspelt_field_would_be_found():
    [document] = manifests("jobset", RUN, KubernetesFields(**FULL))
    document["spec"]["failurePolicy"]["maxRestart"] = 1
    assert "maxRestart" in problems(document)[0]
    [document] = manifests("trainjob", RUN, KubernetesFields(**FULL))
    document["spec"]["trainer"]["numNodes"] = "two"
    assert "spec.trainer.numNodes" in problems(document)[0]


def test_older_trainer_has_other_patches():
    [document] = manifests("trainjob", RUN, KubernetesFields(**FULL), patches=False)
    [patch] = document["spec"]["podTemplateOverrides"]
    assert "runtimePatches" not in document["spec"] and patch["targetJobs"] == [{"name": "node"}] and "terminationGracePeriodSeconds" not in patch["spec"]
    assert patch["metadata"]["labels"]["fsdl-dev/run"] == RUN.run_id and [volume["name"] for volume in patch["spec"]["volumes"]][:2] == ["shm", "storage"]


# ---- requests


@pytest.fixture(scope="module", params=SERVERS)
def api(request, tmp_path_factory):
    "An API server with every custom resource."
    served = start_api(tmp_path_factory.mktemp("kube"), request.param)
    try:
        served.install("jobsets", "trainjobs", "workloads", "localqueues", "podgroups")
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
    assert (there, found) == (False, True) and made["metadata"]["uid"] == again["metadata"]["uid"]
    for document in others:
        create_object(cluster, document)
    assert made["spec"]["suspend"] is True and cluster.namespace == "team" and cluster.context == "test"
    named = [item["metadata"]["name"] for item in list_objects(cluster, first["apiVersion"], first["kind"], "team", "fsdl-dev/project=once")]
    assert named == [run.name]
    assert list_objects(cluster, first["apiVersion"], first["kind"], "team", "fsdl-dev/project=twice") == []
    assert delete_object(cluster, first["apiVersion"], first["kind"], run.name) is True
    left = api.request("GET", f"/apis/{first['apiVersion']}/namespaces/team/{first['kind'].lower()}s/{run.name}")
    assert left["metadata"]["deletionTimestamp"] and left["metadata"]["finalizers"] == ["foregroundDeletion"]  # waits for its pods
    assert delete_object(cluster, first["apiVersion"], first["kind"], "fsdl-none") is False


def test_the_server_knows_every_field(cluster):
    [first] = manifests("job", KubeRun("20261121-075212345-strict-one"), KubernetesFields(**FULL))
    first["spec"]["template"]["spec"]["containers"][0]["shm"] = "8Gi"
    with pytest.raises(KubeError) as refused:
        create_object(cluster, first)
    assert "refused the manifest" in refused.value.what and "shm" in refused.value.what and "--dry-run" in refused.value.fix


def test_what_the_cluster_has(cluster, api):
    assert cluster.versions("jobset.x-k8s.io") == ["v1alpha2"] and cluster.versions("nobody.example") == [] and cluster.versions("batch") == ["v1"]
    assert list_objects(cluster, "nobody.example/v1", "Job", "team") == []


def test_an_api_server_that_restarts_is_waited_for(tmp_path):
    served = start_api(tmp_path, False)
    cluster = KubeApi(str(served.kubeconfig), where="here")
    failures = iter([503, 503, 429])
    served.server.refuse.append(lambda method, path: (code, {"message": "busy"}) if (code := next(failures, None)) else None)
    try:
        assert list_objects(cluster, "v1", "Pod", "team") == []
    finally:
        served.stop()


@pytest.mark.parametrize(("status", "message", "said"), [
    (401, "Unauthorized", "does not accept the login"),
    (403, 'jobs.batch is forbidden: User "ada" cannot create resource "jobs" in API group "batch" in the namespace "team"', "auth can-i create jobs"),
    (403, 'jobs.batch "x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=8, used: requests.nvidia.com/gpu=12, limited: requests.nvidia.com/gpu=16', "4 left"),
    (400, 'admission webhook "policy.example" denied the request: no owner label', "no owner label"),
])
def test_refusals_in_plain_words(tmp_path, status, message, said):
    served = start_api(tmp_path, False)
    served.server.refuse.append(lambda method, path: (status, {"kind": "Status", "message": message, "reason": "x"}) if method == "POST" else None)
    try:
        with pytest.raises(KubeError) as refused:
            create_object(KubeApi(str(served.kubeconfig), where="here"), manifests("job", KubeRun("r"), KubernetesFields(**FULL))[0])
        assert said in str(refused.value) and refused.value.status == status
    finally:
        served.stop()
