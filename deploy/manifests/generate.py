"""Writes what is generated of the charts, and renders the plain manifests beside this file from them.

    python deploy/manifests/generate.py [--check]

The roster becomes a template of the library chart, `gpuloom scheduler-config` a file of the scheduler's
chart, a service's schema that of the charts that are none, and the umbrella chart the manifests for `kubectl
apply -k deploy`. `--check` writes nothing and fails if a file is not what it would be. Needs helm: $HELM, or
one that `make kube-assets ARGS=helm` built, or one on the path.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(DEPLOY.parent))

from gpuloom.cli.scheduling.scheduler_config import (  # noqa: E402
    REPLACE_DEFAULT,
    SchedulerConfigOptions,
    render_scheduler_config,
)
from gpuloom.roster import ROSTER, Service  # noqa: E402
from tests.cluster.assets.build import PROGRAMS, cache_folder  # noqa: E402

CHARTS = DEPLOY / "charts"
RELEASE = "gpuloom"
NAMESPACE = "gpuloom-system"
ALIAS_DESCRIPTION = "GPULoom under the name that its product documents print."
HEAD = "# Rendered from deploy/charts by `make manifests`; change it there.\n"

RBAC_KINDS = ("ServiceAccount", "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding")
FILES = {
    "namespaces": ("Namespace",),
    "rbac": RBAC_KINDS,
    "admission": ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
    "network-policies": ("NetworkPolicy",),
    "priority-classes": ("PriorityClass",),
    "certificates": ("Job", "CronJob"),
}
# Of charts that are no service: the values that all services have and that they take too, and their own.
_POD_VALUES = (
    *("global", "common", "enabled", "nameOverride", "fullnameOverride", "imagePullSecrets", "commonLabels"),
    *("podAnnotations", "podLabels", "nodeSelector", "tolerations", "affinity", "priorityClassName"),
    *("podSecurityContext", "securityContext"),
)
_JOB_VALUES = (*_POD_VALUES, "image", "extraEnv", "resources")
_SCHEDULER_VALUES = (
    *(*_JOB_VALUES, "serviceAccount", "rbac", "replicas", "extraArgs", "command", "annotations", "tls"),
    *("topologySpreadConstraints", "updateStrategy", "startupProbe", "livenessProbe", "readinessProbe"),
    *("terminationGracePeriodSeconds", "extraVolumes", "extraVolumeMounts", "podDisruptionBudget"),
)
_TEXT, _OBJECT, _LIST, _FLAG = ({"type": kind} for kind in ("string", "object", "array", "boolean"))
_AUTO = {"enum": [True, False, "auto", "true", "false"]}


def _only(**properties: object) -> dict[str, object]:
    return {"type": "object", "additionalProperties": False, "properties": properties}


_IMAGE = _only(registry=_TEXT, repository=_TEXT, tag=_TEXT, digest=_TEXT, pullPolicy=_TEXT)
OTHER_CHARTS: dict[str, tuple[tuple[str, ...], dict[str, object]]] = {
    "certificates": ((*_JOB_VALUES, "serviceAccount", "rbac", "extraArgs"), {"schedule": _TEXT}),
    "gpuloom-crds": (_JOB_VALUES, {"upgradeJob": _FLAG}),
    "scheduler": (
        _SCHEDULER_VALUES,
        {"weight": {"type": "integer", "minimum": 1}, "extenderUrl": _TEXT, "configuration": _OBJECT},
    ),
    "monitoring": (
        _POD_VALUES,
        {
            "prometheusRules": _AUTO,
            "prometheusRuleLabels": _OBJECT,
            "dashboards": _FLAG,
            "dashboardLabels": _OBJECT,
            "prometheus": _only(
                image=_IMAGE,
                retention=_TEXT,
                resources=_OBJECT,
                storage=_only(size=_TEXT, storageClass=_TEXT),
                extraArgs=_LIST,
                alertmanagers=_LIST,
            ),
            "grafana": _only(
                image=_IMAGE,
                resources=_OBJECT,
                service=_only(type=_TEXT, annotations=_OBJECT),
                adminSecret=_TEXT,
                extraEnv=_LIST,
            ),
        },
    ),
}
WORKLOADS = "services"
"""All other kinds."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Write what is generated of the charts and manifests.")
    parser.add_argument("--check", action="store_true", help="fail if a file is not what it would be")
    options = parser.parse_args()
    # The manifests are rendered from the charts, so what is generated of these comes first.
    differing = [path for path, text in generated_chart_files().items() if not put(path, text, options.check)]
    differing += [path for path, text in manifests().items() if not put(path, text, options.check)]
    for path in differing:
        sys.stderr.write(f"{path.relative_to(DEPLOY.parent)} is not what `make manifests` writes\n")
    return 1 if differing else 0


def put(path: Path, text: str, check: bool) -> bool:
    """Whether the file is, or may be made, what it should be."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return True
    if not check:
        path.write_text(text, encoding="utf-8")
    return not check


def generated_chart_files() -> dict[Path, str]:
    scheduler = DEPLOY / "scheduler"
    charts = {path: chart_file(path) for path in CHARTS.glob("*/Chart.yaml")}
    umbrella = charts[CHARTS / "gpuloom" / "Chart.yaml"]
    alias = umbrella.replace("name: gpuloom\n", "name: gpu-autoscaler\n", 1)
    alias = re.sub(r"^description: .*$", f"description: {ALIAS_DESCRIPTION}", alias, flags=re.MULTILINE)
    return {
        **charts,
        **{CHARTS / name / "values.schema.json": schema(name) for name in OTHER_CHARTS},
        CHARTS / "gpu-autoscaler" / "Chart.yaml": alias,
        CHARTS / "common" / "templates" / "_roster.tpl": roster_template(),
        scheduler / "kube-scheduler-config.yaml": render_scheduler_config(SchedulerConfigOptions()),
        scheduler / "kube-scheduler-config.replace-default.yaml": render_scheduler_config(REPLACE_DEFAULT),
    }


def chart_file(path: Path) -> str:
    """With the version of the package, which is the only place that says it."""
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = path.read_text(encoding="utf-8")
    return re.sub(r"^(version|appVersion): .*$", rf"\1: {project['version']}", text, flags=re.MULTILINE)


def schema(chart: str) -> str:
    """Of a chart that is no service. What it would not heed has to stay as it is."""
    document = json.loads((CHARTS / "common" / "service.schema.json").read_text(encoding="utf-8"))
    shared = yaml.safe_load((CHARTS / "common" / "values.yaml").read_text(encoding="utf-8"))
    taken, own = OTHER_CHARTS[chart]
    heeded = {name: rule for name, rule in document["properties"].items() if name in taken}
    others = {
        name: unchanged(value) for name, value in shared["exports"]["defaults"].items() if name not in taken
    }
    document |= {"title": f"Values of {chart}", "properties": {**heeded, **others, **own}}
    return json.dumps(document, indent=1) + "\n"


def unchanged(default: object) -> dict[str, object]:
    """In parts, because of a whole the validator does not say what is wrong with it."""
    if isinstance(default, dict):
        return _only(**{name: unchanged(value) for name, value in default.items()})
    return {"type": "array", "maxItems": 0} if default == [] else {"const": default}


def roster_template() -> str:
    document = {
        "services": {chart_name(row.name): roster_row(row) for row in ROSTER},
        "clients": [client.name for client in ROSTER.clients if client.certified],
    }
    head = "{{/* gpuloom/roster.py, as `make manifests` writes it: change it there. */}}\n"
    body = yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=160)
    return f'{head}{{{{- define "common.roster" -}}}}\n{body}{{{{- end -}}}}\n'


def roster_row(row: Service) -> dict[str, Any]:
    return {
        "identity": row.name,
        "kind": row.kind.value,
        "address": row.address_setting,
        "outside": sorted(outside.value for outside in row.outside),
        "ports": {
            port.name: {
                "number": port.number,
                "setting": port.setting,
                "callers": sorted(chart_name(caller) for caller in port.callers),
            }
            for port in row.ports
        },
    }


def chart_name(name: str) -> str:
    return name.replace("_", "-")


def manifests() -> dict[Path, str]:
    """What `kubectl apply -k deploy` applies, beside the definitions of custom resources."""
    documents = rendered("gpuloom", "--set", "namespace.create=true")
    sorted_in: dict[str, list[dict[str, Any]]] = {name: [] for name in (*FILES, WORKLOADS)}
    for document in documents:
        sorted_in[_file_of(document)].append(document)
    here = DEPLOY / "manifests"
    files = {here / f"{name}.yaml": HEAD + dumped(found) for name, found in sorted_in.items() if found}
    names = sorted(path.name for path in files)
    files[here / "kustomization.yaml"] = HEAD + dumped([_kustomization(names)])
    definitions = sorted(f"crds/{path.name}" for path in (DEPLOY / "crds").glob("*.yaml"))
    files[DEPLOY / "kustomization.yaml"] = HEAD + dumped([_kustomization([*definitions, "manifests"])])
    return files


def _file_of(document: dict[str, Any]) -> str:
    return next((name for name, kinds in FILES.items() if document["kind"] in kinds), WORKLOADS)


def _kustomization(resources: list[str]) -> dict[str, Any]:
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": resources,
    }


def rendered(chart: str, *options: str) -> list[dict[str, Any]]:
    """What `helm template` makes of a chart, without hooks: they are for upgrades by helm."""
    version = PROGRAMS["kube-apiserver"].version()
    command = (
        *(helm(), "template", RELEASE, str(CHARTS / chart), "--namespace", NAMESPACE),
        *("--kube-version", version, "--no-hooks", *options),
    )
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - helm of ours
    if result.returncode:
        raise SystemExit(result.stderr.strip())
    documents = [document for document in yaml.safe_load_all(result.stdout) if document]
    for document in documents:
        _forget_helm(document)
    return documents


def _forget_helm(document: dict[str, Any]) -> None:
    """Labels that say helm manages it, in pods as well."""
    template = (document.get("spec") or {}).get("template") or {}
    for metadata in (document["metadata"], template.get("metadata") or {}):
        for label in ("helm.sh/chart", "app.kubernetes.io/managed-by"):
            (metadata.get("labels") or {}).pop(label, None)


def dumped(documents: list[dict[str, Any]]) -> str:
    return yaml.dump_all(
        documents, Dumper=_BlockDumper, sort_keys=False, width=120, explicit_start=len(documents) > 1
    )


class _BlockDumper(yaml.SafeDumper):
    """Text of several lines as such."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_BlockDumper.add_representer(str, _text)


def helm() -> str:
    built = cache_folder(os.environ) / "helm"
    found = os.environ.get("HELM") or (str(built) if built.exists() else shutil.which("helm"))
    if not found:
        raise SystemExit("helm is needed: make kube-assets ARGS=helm builds it, or set HELM")
    return found


if __name__ == "__main__":
    sys.exit(main())
