"""Workloads, Jobs and pods as the controller sees them."""

from pathlib import Path
from typing import Any

import yaml

from gpuloom.codec.custom.workload import gpu_workload
from gpuloom.kube.objects import JsonObject
from gpuloom.model.workload import GpuWorkload

EXAMPLES = Path(__file__).parents[3] / "examples"


def a_workload_object(uid: str = "uid-1", status: JsonObject | None = None, **spec: Any) -> JsonObject:
    return {
        "apiVersion": "gpu.warp.dev/v1alpha1",
        "kind": "GPUWorkload",
        "metadata": {"name": "train", "namespace": "team-a", "uid": uid, "generation": 1},
        "spec": {"modelName": "llama2", "gpuCount": 2, "image": "example/llama:1", **spec},
        "status": status or {},
    }


def a_workload(**spec: Any) -> GpuWorkload:
    return gpu_workload(a_workload_object(**spec))


def the_printed_workload() -> GpuWorkload:
    (document,) = yaml.safe_load_all((EXAMPLES / "gpuworkload.yaml").read_text(encoding="utf-8"))
    document["metadata"].setdefault("namespace", "default")
    document["metadata"]["uid"] = "uid-printed"
    return gpu_workload(document)
