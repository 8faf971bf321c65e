"""The controller's settings."""

from dataclasses import dataclass
from enum import StrEnum

from gpuloom.clients.prometheus import PrometheusConfig
from gpuloom.kube.leadership import LeadershipConfig, leadership_group
from gpuloom.kube.settings import KubeConfig
from gpuloom.rpc.serving import ServingConfig, grpc_group, peer_setting
from gpuloom.runtime.config import group, setting
from gpuloom.runtime.parsers import Address, boolean, choice, integer, seconds, text
from gpuloom.runtime.settings import HttpConfig, LogConfig


class Placement(StrEnum):
    ANNOTATION = "annotation"
    """Our extender reads the strategy from the pod."""
    AFFINITY = "affinity"
    """Another scheduler: the controller chooses the node, and requires it by a node affinity."""


class GpuResource(StrEnum):
    AUTO = "auto"
    NVIDIA = "nvidia.com/gpu"
    GPULOOM = "gpuloom.dev/gpu-milli"


@dataclass(frozen=True)
class ControllerConfig:
    namespace: str | None = setting(
        "GPULOOM_CONTROLLER_NAMESPACE",
        default=None,
        parse=text,
        help="Only workloads of this namespace, with a Role instead of a ClusterRole; by default of all",
    )
    selector: str = setting(
        "GPULOOM_CONTROLLER_SELECTOR",
        default="",
        parse=text,
        help="Label selector of the workloads of this controller, where several run side by side (each with "
        "a lease of its own); by default all",
    )
    placement: Placement = setting(
        "GPULOOM_CONTROLLER_PLACEMENT",
        default=Placement.ANNOTATION,
        parse=choice(*Placement),
        help="Who follows a strategy: annotation (placement reads it), or affinity (the controller "
        "requires a node, where GPULoom's extender is not the scheduler; needs to read nodes)",
    )
    gpu_resource: GpuResource = setting(
        "GPULOOM_CONTROLLER_GPU_RESOURCE",
        default=GpuResource.AUTO,
        parse=choice(*GpuResource),
        help="The resource that Jobs ask for; auto: GPULoom's if it gives out all GPUs, else NVIDIA's",
    )
    scheduler_name: str | None = setting(
        "GPULOOM_CONTROLLER_SCHEDULER_NAME",
        default=None,
        parse=text,
        help="schedulerName of pods whose template has none, where ours is a second scheduler",
    )
    priority_class_prefix: str = setting(
        "GPULOOM_CONTROLLER_PRIORITY_CLASS_PREFIX",
        default="gpuloom-",
        parse=text,
        help="What stands before low, medium and high in the names of the priority classes",
    )
    images: str = setting(
        "GPULOOM_CONTROLLER_IMAGES",
        default="gpuloom-model-images",
        parse=text,
        help="ConfigMap in the controller's namespace: modelName to image, or to YAML with image and command",
    )
    default_image: str | None = setting(
        "GPULOOM_CONTROLLER_DEFAULT_IMAGE",
        default=None,
        parse=text,
        help="Image of workloads that name none and whose model has none; without it they stay Pending",
    )
    workers: int = setting(
        "GPULOOM_CONTROLLER_WORKERS", default=8, parse=integer(1, 64), help="Workloads reconciled at once"
    )
    waste: bool = setting(
        "GPULOOM_CONTROLLER_WASTE",
        default=True,
        parse=boolean,
        help="Tell of pods that waste their GPUs, by what the optimizer says",
    )
    waste_interval_s: float = setting(
        "GPULOOM_CONTROLLER_WASTE_INTERVAL",
        default=30.0,
        parse=seconds,
        help="How often the optimizer is asked about every GPU pod",
    )
    waste_threshold: int = setting(
        "GPULOOM_CONTROLLER_WASTE_THRESHOLD",
        default=50,
        parse=integer(0, 100),
        help="Pods with a score above it, 0 to 100, are told of",
    )
    optimizer_address: Address = peer_setting("optimizer")
    prometheus: PrometheusConfig = group(PrometheusConfig)
    leadership: LeadershipConfig = leadership_group("controller")
    grpc: ServingConfig = grpc_group("controller")
    kube: KubeConfig = group(KubeConfig)
    log: LogConfig = group(LogConfig)
    http: HttpConfig = group(HttpConfig)

    def gives_shares(self) -> bool | None:
        by_resource = {GpuResource.AUTO: None, GpuResource.NVIDIA: False, GpuResource.GPULOOM: True}
        return by_resource[self.gpu_resource]

    def problems(self) -> list[str]:
        if self.namespace is not None and self.placement is Placement.AFFINITY:
            return [
                "GPULOOM_CONTROLLER_PLACEMENT=affinity needs to read nodes, which a controller of one "
                "namespace (GPULOOM_CONTROLLER_NAMESPACE) may not; use annotation"
            ]
        return []
