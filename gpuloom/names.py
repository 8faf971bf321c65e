"""Every label, annotation and resource name that users or other programs see, in one place."""

LABEL_MODE = "gpuloom.dev/mode"
LABEL_LEADER = "gpuloom.dev/leader"
LABEL_GANG = "gpuloom.dev/gang"
"""On a pod: the gang it is a member of, in its namespace."""

RESOURCE_NVIDIA_GPU = "nvidia.com/gpu"
RESOURCE_NVIDIA_MIG_PREFIX = "nvidia.com/mig-"
RESOURCE_GPU_MILLI = "gpuloom.dev/gpu-milli"
RESOURCE_GPU_MEMORY_MIB = "gpuloom.dev/gpu-memory-mib"

ANNOTATION_ALLOCATION = "gpuloom.dev/allocation"
ANNOTATION_VISIBLE_DEVICES = "gpuloom.dev/visible-devices"
ANNOTATION_EPOCH = "gpuloom.dev/epoch"
ANNOTATION_MIG_PROFILE = "gpuloom.dev/mig-profile"
ANNOTATION_GPU_MODEL = "gpuloom.dev/gpu-model"
ANNOTATION_GPU_ARCHITECTURE = "gpuloom.dev/gpu-architecture"
ANNOTATION_TOPOLOGY = "gpuloom.dev/topology"
ANNOTATION_TOPOLOGY_REQUIRED = "gpuloom.dev/topology-required"
ANNOTATION_STRATEGY = "gpuloom.dev/strategy"
ANNOTATION_GANG_SIZE = "gpuloom.dev/gang-size"
ANNOTATION_GANG_TOPOLOGY = "gpuloom.dev/gang-topology"
"""On a member: the node label whose value all of them share; with `:preferred` behind it, if possible."""
ANNOTATION_GANG_TIMEOUT = "gpuloom.dev/gang-timeout-seconds"
ANNOTATION_NO_PREEMPT = "gpuloom.dev/no-preempt"
"""On a pod, "true": it is never evicted for another pod."""
ANNOTATION_CHECKPOINT_TIME = "gpuloom.dev/checkpoint-time"
"""On a pod: when its work was last saved; what came after is lost if it is evicted."""
ANNOTATION_CHECKPOINT_REQUESTED = "gpuloom.dev/checkpoint-requested"
"""On a pod: it will be evicted, and may save its work now."""
ANNOTATION_CHECKPOINT_GRACE = "gpuloom.dev/checkpoint-grace-seconds"
ANNOTATION_RESERVATION = "gpuloom.dev/reservation"
"""On a pod: the GPUReservation of its namespace that it insists on, or, once bound, that it uses."""
LABEL_SHARING = "gpu-autoscaler.io/sharing"
LABEL_SHARING_MODE = "gpu-autoscaler.io/sharing-mode"
ANNOTATION_CAPACITY_EPOCH = "gpuloom.dev/capacity-epoch"
ANNOTATION_DELIVERED = "gpuloom.dev/delivered"
"""On a container, in the runtime only: what the agent gave it. It outlives the agent."""
ANNOTATION_NO_DISRUPT = "gpuloom.dev/no-disrupt"
"""On a pod, "true": it is not moved to make room."""
ANNOTATION_NO_PREEMPT = "gpuloom.dev/no-preempt"
"""On a pod, "true": nobody takes its devices for another pod."""
ANNOTATION_CHECKPOINT_TIME = "gpuloom.dev/checkpoint-time"
"""On a pod: when it last saved its work."""
ANNOTATION_ENFORCEMENT = "gpuloom.dev/enforcement"
"""On a pod: mps (its share must be a limit of the driver) or none (accounting is enough)."""
ANNOTATION_MPS_THREADS = "gpuloom.dev/mps-thread-percentage"
ANNOTATION_MPS_MEMORY = "gpuloom.dev/mps-memory-mib"
ANNOTATION_RECOMMENDATION = "gpuloom.dev/recommendation"
"""On a pod that wastes its GPU: what it should ask for, as the controller was told by the optimizer."""
ANNOTATION_SPOT_NOTICE = "gpuloom.dev/spot-notice"
"""On a node: the cloud whose notice discovery wrote; without it, a warning is somebody else's and stays."""
ANNOTATION_SPOT_WARNING = "gpu-autoscaler.io/spot-interruption-warning"
ANNOTATION_SPOT_TIME = "gpu-autoscaler.io/spot-termination-time"

PREFIX = "gpuloom.dev/"
POD_KEYS = frozenset(
    {
        LABEL_LEADER,
        LABEL_GANG,
        ANNOTATION_ALLOCATION,
        ANNOTATION_VISIBLE_DEVICES,
        ANNOTATION_EPOCH,
        ANNOTATION_MIG_PROFILE,
        ANNOTATION_NO_DISRUPT,
        ANNOTATION_NO_PREEMPT,
        ANNOTATION_CHECKPOINT_TIME,
        ANNOTATION_ENFORCEMENT,
        ANNOTATION_MPS_THREADS,
        ANNOTATION_MPS_MEMORY,
        ANNOTATION_GPU_MODEL,
        ANNOTATION_GPU_ARCHITECTURE,
        ANNOTATION_TOPOLOGY,
        ANNOTATION_TOPOLOGY_REQUIRED,
        ANNOTATION_DELIVERED,
        ANNOTATION_STRATEGY,
        ANNOTATION_GANG_SIZE,
        ANNOTATION_GANG_TOPOLOGY,
        ANNOTATION_GANG_TIMEOUT,
        ANNOTATION_RECOMMENDATION,
        ANNOTATION_NO_PREEMPT,
        ANNOTATION_CHECKPOINT_TIME,
        ANNOTATION_CHECKPOINT_REQUESTED,
        ANNOTATION_CHECKPOINT_GRACE,
        ANNOTATION_RESERVATION,
    }
)
"""Every label and annotation of ours that means something on a pod."""
POD_RESOURCES = frozenset({RESOURCE_GPU_MILLI, RESOURCE_GPU_MEMORY_MIB})

REQUIRED_PLUGINS_PREFIX = "required-plugins.noderesource.dev/container."
"""Of containerd: the container named behind it is created only while the listed plugins are there."""
NRI_PLUGIN = "gpuloom"

CONDITION_GPUS_HEALTHY = "GpusHealthy"
CONDITION_ADMISSION_POLICIES = "gpuloom.dev/AdmissionPoliciesInstalled"
"""On the pod of the extender that leads."""
