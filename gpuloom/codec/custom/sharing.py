"""GPUSharingPolicy and GPUNodeConfig."""

from gpuloom.codec.custom.objects import conditions, conditions_to_json, opened, selector
from gpuloom.codec.custom.reading import (
    Fields,
    Json,
    each,
    flag,
    mig_profile,
    name,
    one_of,
    part,
    whole,
)
from gpuloom.codec.custom.workload import MAX_GPUS, MAX_MEMORY_MIB
from gpuloom.model.objects import LabelSelector
from gpuloom.model.sharing import (
    STAGES_OF_INSTANCES,
    DividedGpu,
    GpuNodeConfig,
    GpuNodeConfigSpec,
    GpuNodeConfigStatus,
    GpuSharingPolicy,
    GpuSharingPolicySpec,
    GpuSharingPolicyStatus,
    InstanceState,
    MigStage,
    MpsSettings,
    SharingStrategy,
)

_PRIORITY = 1_000_000
_MPS_CLIENTS = whole(1, 60)
_REPLICAS = whole(2, 64)


def gpu_sharing_policy(obj: object) -> GpuSharingPolicy:
    meta, spec, status = opened(obj)
    return GpuSharingPolicy(meta, _policy(spec), GpuSharingPolicyStatus(conditions(status)))


def gpu_sharing_policy_status_to_json(status: GpuSharingPolicyStatus) -> Json:
    return {"conditions": conditions_to_json(status.conditions)}


def gpu_node_config(obj: object) -> GpuNodeConfig:
    meta, spec, status = opened(obj)
    return GpuNodeConfig(meta, _config(spec), _config_status(status))


def gpu_node_config_status_to_json(status: GpuNodeConfigStatus) -> Json:
    return {
        "gpus": [
            {
                "uuid": gpu.uuid,
                "state": gpu.stage,
                "instances": [
                    {"profile": one.profile, "start": one.start, "state": one.stage} for one in gpu.instances
                ],
            }
            for gpu in status.gpus
        ],
        "conditions": conditions_to_json(status.conditions),
    }


def _policy(fields: Fields) -> GpuSharingPolicySpec:
    return GpuSharingPolicySpec(
        strategy=fields.need("strategy", one_of(SharingStrategy)),
        pods=fields.get_or("podSelector", part(selector), LabelSelector()),
        namespaces=fields.get_or("namespaceSelector", part(selector), LabelSelector()),
        priority=fields.get_or("priority", whole(-_PRIORITY, _PRIORITY), 0),
        mig_profile=fields.get_or("migConfig", part(_chosen_profile), None),
        mps=fields.get_or("mpsConfig", part(_mps), MpsSettings()),
        replicas_per_gpu=fields.get("timeSlicingConfig", part(_replicas)),
    )


def _chosen_profile(fields: Fields) -> str | None:
    # Without a profile it is chosen automatically; the definition's rules let nothing else be said.
    fields.get("autoSelectProfile", flag)
    return fields.get("profile", mig_profile)


def _mps(fields: Fields) -> MpsSettings:
    return MpsSettings(
        max_clients=fields.get("maxClients", _MPS_CLIENTS),
        thread_percentage=fields.get("threadPercentage", whole(1, 100)),
        memory_mib=fields.get("memoryMib", whole(1, MAX_MEMORY_MIB)),
    )


def _replicas(fields: Fields) -> int:
    return fields.need("replicasPerGPU", _REPLICAS)


def _config(fields: Fields) -> GpuNodeConfigSpec:
    return GpuNodeConfigSpec(
        node_name=fields.need("nodeName", name()),
        mig_enabled=fields.get("migEnabled", flag),
        mig_profiles=fields.get_or("migProfiles", each(mig_profile, 64), ()),
        mps_enabled=fields.get("mpsEnabled", flag),
        mps_max_clients=fields.get("mpsMaxClients", _MPS_CLIENTS),
        time_slicing_enabled=fields.get("timeSlicingEnabled", flag),
        time_slicing_replicas=fields.get("timeSlicingReplicas", _REPLICAS),
    )


def _config_status(fields: Fields) -> GpuNodeConfigStatus:
    return GpuNodeConfigStatus(
        gpus=fields.get_or("gpus", each(part(_gpu), MAX_GPUS), ()),
        conditions=conditions(fields),
    )


def _gpu(fields: Fields) -> DividedGpu:
    return DividedGpu(
        uuid=fields.need("uuid", name(128)),
        stage=fields.need("state", one_of(MigStage)),
        instances=fields.get_or("instances", each(part(_instance), 64), ()),
    )


def _instance(fields: Fields) -> InstanceState:
    return InstanceState(
        profile=fields.need("profile", name(32)),
        start=fields.need("start", whole(0, 63)),
        stage=fields.need("state", one_of(MigStage, STAGES_OF_INSTANCES)),
    )
