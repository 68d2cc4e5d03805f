"""The schemas of Kubernetes objects, from the packages that publish them: `kubernetes` (Job, Pod, Service, Node) and
`kubeflow-trainer-api` (TrainJob, JobSet). Closed: a field that the published model does not have is refused.
"""

from functools import cache

ANY = {"x-kubernetes-preserve-unknown-fields": True}
CUSTOM = {  # plural -> group, versions, kind, namespaced
    "jobsets": ("jobset.x-k8s.io", ["v1alpha2"], "JobSet"),
    "trainjobs": ("trainer.kubeflow.org", ["v1alpha1"], "TrainJob"),
    "workloads": ("kueue.x-k8s.io", ["v1beta1"], "Workload"),
    "localqueues": ("kueue.x-k8s.io", ["v1beta1"], "LocalQueue"),
    "podgroups": ("scheduling.x-k8s.io", ["v1alpha1"], "PodGroup"),
}


def _plain(schema: dict, models: dict, closed: bool) -> dict:
    "A JSON schema of pydantic as Kubernetes writes schemas: no references, no null."
    if "$ref" in schema:
        name = schema["$ref"].split("/")[-1]
        if name.endswith(("IntOrString", "Quantity")):
            return {"x-kubernetes-int-or-string": True}
        return _plain(models[name], models, closed)
    if "anyOf" in schema:
        kinds = [kind for kind in schema["anyOf"] if kind.get("type") != "null"]
        return _plain(kinds[0], models, closed) if len(kinds) == 1 else dict(ANY)
    kind = schema.get("type")
    if kind == "array":
        return {"type": "array", "items": _plain(schema.get("items", {}), models, closed) or dict(ANY)}
    if kind == "object" and "properties" in schema:
        inner = {
            "type": "object",
            "properties": {name: _plain(item, models, closed) for name, item in schema["properties"].items()},
        }
        required = [name for name in schema.get("required", ())]
        return (
            inner
            | ({"required": required} if required else {})
            | ({"additionalProperties": False} if closed else {})
        )
    if kind == "object":
        more = schema.get("additionalProperties")
        return (
            {"type": "object", "additionalProperties": _plain(more, models, closed)}
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
def schema_of(kind: str, closed: bool = True) -> dict | None:
    "The schema of a kind; None for one that no package publishes."
    model = _models().get(kind)
    if model is None:
        return None
    schema = model.model_json_schema(by_alias=True)
    return _plain(schema, schema.get("$defs", {}), closed)


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


def custom_resource(plural: str) -> dict:
    """A CustomResourceDefinition with the published schema of its kind (without its CEL rules), or with none
    where no package publishes one.
    """
    group, versions, kind = CUSTOM[plural]
    schema = schema_of(kind, closed=False) or {
        "type": "object",
        "properties": {"spec": {"type": "object", **ANY}, "status": {"type": "object", **ANY}},
    }
    schema = schema | {"properties": schema["properties"] | {"metadata": {"type": "object"}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": number == 0,
                    "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": schema},
                }
                for number, version in enumerate(versions)
            ],
        },
    }
