"""Every label, annotation and resource name that users or other programs see, in one place."""

LABEL_MODE = "gpuloom.dev/mode"

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
ANNOTATION_CAPACITY_EPOCH = "gpuloom.dev/capacity-epoch"
