"""Quotas as objects of Kueue, judged by Kueue's own CRDs, and what `fsdl policy apply --print` writes."""

import itertools
import json

import pytest
import yaml
from click.testing import CliRunner
from kube_schemas import kueue_problems

from fsdl_dev.cli.main import main
from fsdl_dev.engines.kubernetes.kueue import kueue_objects
from fsdl_dev.policy.quotas import read_quotas

FULL = {
    "budgets_per": "month",
    "priorities": {"urgent": 1000, "Low Pri".replace(" ", "_"): 0},
    "accounts": {
        "vision": {"share": 40, "gpus": {"a100": 16, "h100": 4}, "guaranteed": {"a100": 8}, "users": ["ada"]},
        "speech.lab": {"gpus": 8, "gpus_per_user": 2, "parent": "vision"},
        "idle": {"gpus": 0, "share": 0},
    },
    "partitions": {"interactive": {"time": "4h", "gpus_per_user": 2}},
}
PLAIN = {"accounts": {"vision": {"gpus": 1}}}
NODES = [
    {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"},
    {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"},
]


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_the_objects_fit_kueues_own_crds(version):
    """Also the rules that its CRDs write in CEL: as many resources as are covered, and no limit without a cohort."""
    for table, labels in itertools.product((FULL, PLAIN), ([], NODES)):
        quotas = read_quotas({"quotas": {"cluster": table}}, "cluster")
        documents = kueue_objects(quotas, "ml", labels=labels, version=version)
        flavours = {one["metadata"]["name"] for one in documents if one["kind"] == "ResourceFlavor"}
        for document in documents:
            assert kueue_problems(document) == [], document
            spec = document.get("spec", {})
            assert (spec.get("cohortName") or spec.get("cohort")) or document["kind"] != "ClusterQueue"
            seen = []
            for group in spec.get("resourceGroups", ()):
                for flavour in group["flavors"]:
                    names = [one["name"] for one in flavour["resources"]]
                    assert names == group["coveredResources"] and flavour["name"] in flavours
                    seen.append(flavour["name"])
            assert len(seen) == len(set(seen)), "a flavour stands in one group only"
        queues = {one["metadata"]["name"] for one in documents if one["kind"] == "ClusterQueue"}
        local = [one for one in documents if one["kind"] == "LocalQueue"]
        assert (
            {one["spec"]["clusterQueue"] for one in local}
            == queues
            == {one["metadata"]["name"] for one in local}
        )


def test_a_wrong_object_does_not_fit():
    """The schemas refuse a field of the other version, and a quota that is no number."""
    quotas = read_quotas({"quotas": {"cluster": PLAIN}}, "cluster")
    queue = next(one for one in kueue_objects(quotas, "ml") if one["kind"] == "ClusterQueue")
    assert kueue_problems(queue | {"apiVersion": "kueue.x-k8s.io/v1beta1"})
    wrong = json.loads(json.dumps(queue))
    wrong["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = "many"
    assert kueue_problems(wrong)


def test_print_writes_them_without_a_cluster(tmp_path, monkeypatch):
    """kubectl applies the file; what Kueue cannot hold to is a comment in it."""
    (tmp_path / "pyproject.toml").write_text("""
[project]
name = "study"
[tool.fsdl_dev.targets.cluster]
kind = "kubernetes"
kubeconfig = "/nowhere"
namespace = "ml"
[tool.fsdl_dev.prices.cluster]
billing_unit = "0.01 USD"
[tool.fsdl_dev.quotas.cluster.accounts.vision]
gpus = { a100 = 16 }
budget = "500 USD"
share = 40
[tool.fsdl_dev.quotas.cluster.partitions.interactive]
time = "4h"
""")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["policy", "apply", "--on", "cluster", "--print"])
    assert done.exit_code == 0, done.output
    documents = list(yaml.safe_load_all(done.output))
    assert [kueue_problems(one) for one in documents] == [[]] * 4
    for words in ("# budget: Kueue knows no money", "# partitions: Kueue has none", "# share: counts where"):
        assert words in done.output
    other = CliRunner().invoke(main, ["policy", "apply", "--on", "cluster", "--yes"])
    assert other.exit_code == 2 and "kubectl apply -f" in other.output, other.output
