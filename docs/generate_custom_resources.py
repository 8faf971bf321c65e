"""Write docs/custom-resources.md from deploy/crds, by `make reference`. Decides how a schema reads."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpuloom.catalog.manifests import definitions

Object = dict[str, Any]

TARGET = Path(__file__).parent / "custom-resources.md"
_INTRODUCTION = """# Custom resources

<!-- Made by `make reference` from deploy/crds; change the definitions, not this page. -->

`kubectl apply -f deploy/crds -f deploy/priority-classes.yaml` installs them; the simulated API of `make run`
has them from its start. [examples/custom-resources](../examples/custom-resources) has a manifest with every
field for each kind, and [examples](../examples) those of common cases. On a cluster, `kubectl explain` shows
the same texts as this page.

The API server fills in defaults, drops fields that it does not know (`kubectl` refuses them), and refuses
wrong values with the name of the field. Fields in **bold** are needed. GPULoom writes `status`, through
the status subresource.

| kind | who acts on it |
|---|---|
| GPUWorkload | the [controller](workloads.md) |
| AutoscalingPolicy, GPUNodeClaim | the [autoscaler](autoscaling.md) |
| AIInferenceAutoscalerPolicy | the [autoscaler](inference.md) |
| CostBudget | the [cost engine](cost.md#budgets), and the extender where it blocks |
| GPUSharingPolicy, GPUNodeConfig | the [MIG controller](mig.md) and the [webhook](admission.md) |
| GPUHold, GPUReservation | the [extender](gangs.md#reservations) |
"""


def reference() -> str:
    ordered = sorted(definitions(), key=lambda one: (one["spec"]["group"], one["spec"]["names"]["kind"]))
    return "\n".join([_INTRODUCTION, *(_section(one["spec"]) for one in ordered)])


def _section(spec: Object) -> str:
    (version,) = spec["versions"]
    schema, names = version["schema"]["openAPIV3Schema"], spec["names"]
    columns = ["NAME", *(one["name"].upper() for one in version["additionalPrinterColumns"])]
    scope = "namespaced" if spec["scope"] == "Namespaced" else "cluster-wide"
    short = ", ".join(f"`{name}`" for name in names["shortNames"])
    lines = [
        f"## {names['kind']}",
        "",
        f"{schema['description']} `{spec['group']}/{version['name']}`, {scope}, short {short}.",
        f"`kubectl get` shows {' '.join(columns)}.",
    ]
    if "scale" in version["subresources"]:
        count = version["subresources"]["scale"]["specReplicasPath"].lstrip(".")
        lines[-1] += f" `kubectl scale` sets `{count}`."
    lines += ["", *_table(schema["properties"]["spec"])]
    rules = list(_rules(schema["properties"]["spec"], "spec"))
    if rules:
        lines += ["", "Further rules:", "", *(f"- `{place}`: {message}" for place, message in rules)]
    lines += ["", "Status:", "", *_table(schema["properties"]["status"]), ""]
    return "\n".join(lines)


def _table(schema: Object) -> Iterator[str]:
    yield "| field | value | default | meaning |"
    yield "|---|---|---|---|"
    for place, one, needed in _fields(schema, ""):
        name = f"**{place}**" if needed else place
        default = f"`{_written(one['default'])}`" if "default" in one else ""
        yield f"| {name} | {_value(one)} | {default} | {one.get('description', '')} |"


def _fields(schema: Object, path: str) -> Iterator[tuple[str, Object, bool]]:
    for key, one in (schema.get("properties") or {}).items():
        place = f"{path}{key}"
        yield place, one, key in (schema.get("required") or ())
        # Conditions are the same everywhere, and known from all of Kubernetes.
        if key != "conditions":
            yield from _fields(one, f"{place}.")
            yield from _fields(one.get("items") or {}, f"{place}[].")


def _rules(schema: Object, path: str) -> Iterator[tuple[str, str]]:
    for rule in schema.get("x-kubernetes-validations") or ():
        yield path + rule.get("fieldPath", ""), rule["message"]
    for key, one in (schema.get("properties") or {}).items():
        yield from _rules(one, f"{path}.{key}")
    if "items" in schema:
        yield from _rules(schema["items"], f"{path}[]")


def _value(schema: Object) -> str:
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    kind = str(schema["type"])
    if kind in ("integer", "number"):
        return f"{'whole ' if kind == 'integer' else ''}number{_range(schema)}"
    if kind == "string":
        return "time" if schema.get("format") == "date-time" else "text"
    if kind == "array":
        of = schema["items"].get("type")
        return f"list of {'texts' if of == 'string' else 'objects'}, at most {schema['maxItems']}"
    if kind == "object" and "additionalProperties" in schema:
        return "texts by name"
    return {"boolean": "`true`, `false`"}.get(kind, kind)


def _range(schema: Object) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is None:
        return ""
    if high is None:
        return f" of at least {low:,}"
    return f" above {low:,}, to {high:,}" if schema.get("exclusiveMinimum") else f", {low:,} to {high:,}"


def _written(default: Any) -> str:
    if isinstance(default, list):
        return ", ".join(_written(one) for one in default)
    if isinstance(default, dict):
        return "{" + ", ".join(f"{key}: {_written(one)}" for key, one in default.items()) + "}"
    return str(default).lower() if isinstance(default, bool) else str(default)


if __name__ == "__main__":
    TARGET.write_text(reference(), encoding="utf-8")
    sys.stdout.write(f"wrote {TARGET}\n")
