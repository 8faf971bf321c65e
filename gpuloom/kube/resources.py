"""Which URL a kind of object lives at. Any custom resource works by constructing a Resource."""

from dataclasses import dataclass
from urllib.parse import quote

from gpuloom.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class Resource:
    group: str
    """Empty for the core group."""
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def collection_path(self, namespace: str | None = None) -> str:
        """The list of all objects, or of those of one namespace."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        if not self.namespaced or not namespace:
            return f"{root}/{self.plural}"
        return f"{root}/namespaces/{quote(namespace, safe='')}/{self.plural}"

    def object_path(self, name: str, namespace: str | None = None, subresource: str = "") -> str:
        # An empty name would address the whole collection: a delete would then empty it.
        if name in ("", ".", ".."):
            raise InvalidRequestError(f"{name!r} can't name one of {self.plural}")
        if self.namespaced and not namespace:
            raise InvalidRequestError(f"{self.plural} {name}: a namespace is needed")
        path = f"{self.collection_path(namespace)}/{quote(name, safe='')}"
        return f"{path}/{subresource}" if subresource else path


PODS = Resource("", "v1", "pods", "Pod")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
EVENTS = Resource("", "v1", "events", "Event")
CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap")
SECRETS = Resource("", "v1", "secrets", "Secret")
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
JOBS = Resource("batch", "v1", "jobs", "Job")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
REPLICASETS = Resource("apps", "v1", "replicasets", "ReplicaSet")
STATEFULSETS = Resource("apps", "v1", "statefulsets", "StatefulSet")
JOB_SETS = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
PYTORCH_JOBS = Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")
MPI_JOBS = Resource("kubeflow.org", "v2beta1", "mpijobs", "MPIJob")
RAY_CLUSTERS = Resource("ray.io", "v1", "rayclusters", "RayCluster")
RAY_JOBS = Resource("ray.io", "v1", "rayjobs", "RayJob")
LEADER_WORKER_SETS = Resource("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet")
GANG_OWNERS = (JOBS, JOB_SETS, PYTORCH_JOBS, MPI_JOBS, RAY_CLUSTERS, RAY_JOBS, LEADER_WORKER_SETS)
"""Kinds whose spec says how many pods belong together."""
PDBS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
GPU_WORKLOADS = Resource("gpu.warp.dev", "v1alpha1", "gpuworkloads", "GPUWorkload")
AUTOSCALING_POLICIES = Resource(
    "gpu-autoscaler.io", "v1alpha1", "autoscalingpolicies", "AutoscalingPolicy", namespaced=False
)
COST_BUDGETS = Resource("gpu-autoscaler.io", "v1alpha1", "costbudgets", "CostBudget", namespaced=False)
GPU_SHARING_POLICIES = Resource(
    "gpu-autoscaler.io", "v1alpha1", "gpusharingpolicies", "GPUSharingPolicy", namespaced=False
)
GPU_NODE_CONFIGS = Resource(
    "gpu-autoscaler.io", "v1alpha1", "gpunodeconfigs", "GPUNodeConfig", namespaced=False
)
INFERENCE_POLICIES = Resource(
    "kubeai.io", "v1alpha1", "aiinferenceautoscalerpolicies", "AIInferenceAutoscalerPolicy"
)
GPU_HOLDS = Resource("gpuloom.dev", "v1alpha1", "gpuholds", "GPUHold", namespaced=False)
GPU_NODE_CLAIMS = Resource("gpuloom.dev", "v1alpha1", "gpunodeclaims", "GPUNodeClaim", namespaced=False)
GPU_RESERVATIONS = Resource("gpuloom.dev", "v1alpha1", "gpureservations", "GPUReservation")
CUSTOM_RESOURCES = (
    GPU_WORKLOADS,
    AUTOSCALING_POLICIES,
    COST_BUDGETS,
    GPU_SHARING_POLICIES,
    GPU_NODE_CONFIGS,
    INFERENCE_POLICIES,
    GPU_HOLDS,
    GPU_NODE_CLAIMS,
    GPU_RESERVATIONS,
)
"""Those of deploy/crds."""
RUNTIME_CLASSES = Resource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False)
ADMISSION_POLICIES = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicies",
    "ValidatingAdmissionPolicy",
    namespaced=False,
)
ADMISSION_POLICY_BINDINGS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicybindings",
    "ValidatingAdmissionPolicyBinding",
    namespaced=False,
)
MUTATING_WEBHOOKS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    namespaced=False,
)
VALIDATING_WEBHOOKS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
)
