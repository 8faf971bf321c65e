"""GPUWorkload."""

import re

from gpuloom.codec.custom.objects import MAX_QUALIFIED, conditions, conditions_to_json, opened
from gpuloom.codec.custom.reading import (
    MAX_LABEL,
    MAX_MESSAGE,
    MAX_NAME,
    Fields,
    Json,
    any_object,
    mig_profile,
    name,
    one_of,
    part,
    text,
    whole,
)
from gpuloom.model.request import TopologyPreference
from gpuloom.model.workload import (
    GpuWorkload,
    GpuWorkloadSpec,
    GpuWorkloadStatus,
    RetryPolicy,
    WorkloadGang,
    WorkloadPhase,
    WorkloadPriority,
    WorkloadSharing,
)

MAX_GPUS = 64
MAX_MEMORY_MIB = 1 << 24

_STRATEGY = re.compile(r"[A-Za-z]([-A-Za-z0-9._]*[A-Za-z0-9])?")
_ARCHITECTURE = re.compile(r"[A-Za-z][-A-Za-z0-9]*")

architecture = text(MAX_LABEL, shortest=1, pattern=_ARCHITECTURE)


def gpu_workload(obj: object) -> GpuWorkload:
    meta, spec, status = opened(obj)
    return GpuWorkload(meta, _spec(spec), _status(status))


def gpu_workload_status_to_json(status: GpuWorkloadStatus) -> Json:
    return {
        "phase": status.phase,
        "assignedNode": status.assigned_node,
        "jobName": status.job_name,
        "message": status.message,
        "retries": status.retries,
        "conditions": conditions_to_json(status.conditions),
    }


def _spec(fields: Fields) -> GpuWorkloadSpec:
    return GpuWorkloadSpec(
        model_name=fields.need("modelName", name()),
        gpu_count=fields.need("gpuCount", whole(1, MAX_GPUS)),
        priority=fields.get_or("priority", one_of(WorkloadPriority), WorkloadPriority.MEDIUM),
        strategy=fields.get_or(
            "schedulingStrategy", text(MAX_LABEL, shortest=1, pattern=_STRATEGY), "leastLoaded"
        ),
        retry=fields.get_or("retryPolicy", part(_retry), RetryPolicy()),
        image=fields.get("image", name(1024)),
        pod_template=fields.get("podTemplate", any_object),
        gpu_memory_mib=fields.get("gpuMemoryMib", whole(1, MAX_MEMORY_MIB)),
        architecture=fields.get("architecture", architecture),
        mig_profile=fields.get("migProfile", mig_profile),
        topology=fields.get_or("topologyPreference", one_of(TopologyPreference), TopologyPreference.NONE),
        gang=fields.get("gang", part(_gang)),
        sharing=fields.get("sharing", one_of(WorkloadSharing)),
    )


def _retry(fields: Fields) -> RetryPolicy:
    default = RetryPolicy()
    return RetryPolicy(
        max_retries=fields.get_or("maxRetries", whole(0, 100), default.max_retries),
        backoff_s=fields.get_or("backoffSeconds", whole(1, 3600), default.backoff_s),
    )


def _gang(fields: Fields) -> WorkloadGang:
    return WorkloadGang(fields.need("size", whole(2, 4096)), fields.get("topology", name(MAX_QUALIFIED)))


def _status(fields: Fields) -> GpuWorkloadStatus:
    return GpuWorkloadStatus(
        phase=fields.get("phase", one_of(WorkloadPhase)),
        assigned_node=fields.get("assignedNode", text(MAX_NAME)),
        job_name=fields.get("jobName", text(MAX_NAME)),
        message=fields.get("message", text(MAX_MESSAGE)),
        retries=fields.get("retries", whole(0)),
        conditions=conditions(fields),
    )
