"""The schemas of Kubernetes objects, from the packages that publish them: `kubernetes` (Job, Pod, Service, Node) and
`kubeflow-trainer-api` (TrainJob, JobSet), and from Kueue's own CRDs (data/kueue_crds.json says from where). Closed: a
field that the published model does not have is refused.
"""

import json
from functools import cache
from pathlib import Path

ANY = {"x-kubernetes-preserve-unknown-fields": True}
CUSTOM = {  # plural -> group, versions, kind, namespaced
    "jobsets": ("jobset.x-k8s.io", ["v1alpha2"], "JobSet"),
    "trainjobs": ("trainer.kubeflow.org", ["v1alpha1"], "TrainJob"),
    "workloads": ("kueue.x-k8s.io", ["v1beta1"], "Workload"),
    "localqueues": ("kueue.x-k8s.io", ["v1beta1"], "LocalQueue"),
}


def _plain(schema: dict, models: dict) -> dict:
    "A JSON schema of pydantic as Kubernetes writes schemas: no references, no null."
    if "$ref" in schema:
        name = schema["$ref"].split("/")[-1]
        if name.endswith(("IntOrString", "Quantity")):
            return {"x-kubernetes-int-or-string": True}
        return _plain(models[name], models)
    if "anyOf" in schema:
        kinds = [kind for kind in schema["anyOf"] if kind.get("type") != "null"]
        return _plain(kinds[0], models) if len(kinds) == 1 else dict(ANY)
    kind = schema.get("type")
    if kind == "array":
        return {"type": "array", "items": _plain(schema.get("items", {}), models) or dict(ANY)}
    if kind == "object" and "properties" in schema:
        inner = {
            "type": "object",
            "properties": {name: _plain(item, models) for name, item in schema["properties"].items()},
        }
        required = list(schema.get("required", ()))
        return inner | {"additionalProperties": False} | ({"required": required} if required else {})
    if kind == "object":
        more = schema.get("additionalProperties")
        return (
            {"type": "object", "additionalProperties": _plain(more, models)}
            if isinstance(more, dict) and more
            else {"type": "object", **ANY}
        )
    if kind in ("string", "integer", "number", "boolean"):
        return {"type": kind}
    return dict(ANY)


def _models() -> dict:
    "The published model of each kind."
    from kubeflow_trainer_api import models as trainer
    from kubernetes import client

    return {
        "Job": client.V1Job,
        "Pod": client.V1Pod,
        "Service": client.V1Service,
        "Node": client.V1Node,
        "Event": client.CoreV1Event,
        "JobSet": trainer.JobsetV1alpha2JobSet,
        "TrainJob": trainer.TrainerV1alpha1TrainJob,
    }


@cache
def schema_of(kind: str) -> dict | None:
    "The schema of a kind; None for one that no package publishes."
    model = _models().get(kind)
    if model is None:
        return None
    schema = model.model_json_schema(by_alias=True)
    return _plain(schema, schema.get("$defs", {}))


@cache
def _kueue_schemas() -> dict:
    "The schemas of Kueue's own CRDs: `apiVersion kind` -> schema, closed."
    text = Path(__file__).with_name("data").joinpath("kueue_crds.json").read_text(encoding="utf-8")
    return {name: _closed(schema) for name, schema in json.loads(text)["schemas"].items()}


def _closed(schema: dict) -> dict:
    "A schema of a CRD as Kubernetes' API server takes it with strict validation: no other fields."
    if "x-kubernetes-int-or-string" in schema:
        return {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": schema.get("pattern", "")}]}
    made = {key: value for key, value in schema.items() if not key.startswith("x-")}
    if "properties" in made:
        made["properties"] = {name: _closed(one) for name, one in made["properties"].items()}
        made["additionalProperties"] = False
    if isinstance(made.get("items"), dict):
        made["items"] = _closed(made["items"])
    return made


def kueue_problems(document: dict) -> list[str]:
    "What is wrong with an object, by Kueue's own CRD of its kind and version."
    import jsonschema

    schema = _kueue_schemas()[f"{document['apiVersion']} {document['kind']}"]
    found = jsonschema.Draft202012Validator(schema).iter_errors(document)
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message[:300]}" for error in found]


def problems(document: dict) -> list[str]:
    "What is wrong with an object, by the published model of its kind."
    import jsonschema

    schema = schema_of(document["kind"])
    if schema is None:
        return []
    return [
        f"{'.'.join(map(str, error.absolute_path))}: {error.message[:300]}"
        for error in jsonschema.Draft202012Validator(schema).iter_errors(document)
    ]
