"""Judges the pods of the services: ready, of one version, one extender leads, agents on all nodes. Pure."""

from collections.abc import Iterator

from gpuloom.cli.doctor.findings import Finding, failed, first_names, ok, skipped, warning
from gpuloom.cli.doctor.observed import Observed, RunProcess, Unread, has_condition, is_over, labels_of
from gpuloom.kube.objects import JsonObject, key_of, metadata_of
from gpuloom.names import LABEL_LEADER

NEEDED = ("node-agent", "discovery", "scheduler-extender")
"""Without these nothing is placed; the others add to it."""
INSTALL = "helm upgrade --install gpuloom ./charts/gpuloom --namespace gpuloom-system --create-namespace"
_NAME = "app.kubernetes.io/name"
_GPU_LABELS: dict[str, tuple[str, ...]] = {
    "nvidia.com/gpu.present": ("true",),
    "feature.node.kubernetes.io/pci-10de.present": ("true",),
    "cloud.google.com/gke-accelerator": (),
    "k8s.amazonaws.com/accelerator": (),
    "kubernetes.azure.com/accelerator": ("nvidia",),
    "gpuloom.dev/gpu": ("true",),
    "gpuloom.dev/mode": ("nvidia", "gpuloom"),
}
"""By which the agents' chart, or whoever installs without it, knows a node with GPUs; none: any value."""


def services(observed: Observed) -> Iterator[Finding]:
    if isinstance(observed.pods, Unread):
        yield skipped("services", observed.pods.why)
        return
    by_name: dict[str, list[JsonObject]] = {}
    for pod in observed.pods:
        if name := labels_of(pod).get(_NAME):
            by_name.setdefault(name, []).append(pod)
    wanted = _replicas(observed)
    for name in sorted({*by_name, *wanted, *NEEDED}):
        yield _service(name, by_name.get(name, []), wanted.get(name, 0))
    # Jobs that are over keep the version of their time.
    running = [pod for pods in by_name.values() for pod in pods if not is_over(pod)]
    images = {tag for pod in running for image in _own_images(pod) if (tag := _tag(image))}
    if len(images) > 1:
        yield warning(
            "versions",
            f"services run {len(images)} versions: {first_names(images)}",
            "wait for the roll-out, or run helm upgrade again",
        )


def processes(observed: Observed) -> Iterator[Finding]:
    """Those of a run: every one says by itself whether it is ready."""
    by_service: dict[str, list[RunProcess]] = {}
    for process in observed.run or ():
        by_service.setdefault(process.service, []).append(process)
    for service, found in by_service.items():
        check = f"service {service.removeprefix('gpuloom-')}"
        wrong = [f"{process.place}: {process.problem}" for process in found if process.problem]
        if wrong:
            yield failed(
                check,
                first_names(wrong),
                "wait a few seconds, then look at its log in logs/ of the run's directory",
            )
        else:
            yield ok(check, f"{len(found)} ready")


def leader(observed: Observed) -> Iterator[Finding]:
    if isinstance(observed.pods, Unread):
        return
    extenders = [pod for pod in observed.pods if labels_of(pod).get(_NAME) == "scheduler-extender"]
    leaders = [pod for pod in extenders if labels_of(pod).get(LABEL_LEADER) == "true"]
    if not extenders:
        return
    if len(leaders) == 1:
        yield ok("extender leader", "/".join(key_of(leaders[0])))
    else:
        seen = first_names(key_of(pod)[1] for pod in leaders) or "none"
        yield failed(
            "extender leader",
            f"one replica must lead, {len(leaders)} do: {seen}",
            "kubectl logs of the extender: it says what it waits for before it serves",
        )


def agents(observed: Observed) -> Iterator[Finding]:
    if isinstance(observed.pods, Unread) or isinstance(observed.nodes, Unread):
        why = observed.pods if isinstance(observed.pods, Unread) else observed.nodes
        yield skipped("node agents", why.why if isinstance(why, Unread) else "")
        return
    with_agent = {
        (pod.get("spec") or {}).get("nodeName")
        for pod in observed.pods
        if labels_of(pod).get(_NAME) == "node-agent" and has_condition(pod, "Ready")
    }
    gpu_nodes = {metadata_of(node).get("name") for node in observed.nodes if _has_gpus(node)}
    if without := {name for name in gpu_nodes - with_agent if name}:
        yield failed(
            "node agents",
            f"{len(without)} of {len(gpu_nodes)} GPU nodes have no ready agent: {first_names(without)}",
            "label them nvidia.com/gpu.present=true, tolerate their taints, and look at the agents' pods",
        )
    elif gpu_nodes:
        yield ok("node agents", f"ready on all {len(gpu_nodes)} GPU nodes")
    else:
        yield warning("node agents", "no node shows a GPU", "kubectl get nodes -L nvidia.com/gpu.present")


def _replicas(observed: Observed) -> dict[str, int]:
    """How many pods each service shall have, of those that have a Deployment."""
    wanted: dict[str, int] = {}
    for one in () if isinstance(observed.deployments, Unread) else observed.deployments:
        if name := labels_of(one).get(_NAME):
            wanted[name] = wanted.get(name, 0) + int((one.get("spec") or {}).get("replicas", 1))
    return wanted


def _service(name: str, pods: list[JsonObject], wanted: int) -> Finding:
    check = f"service {name}"
    if not pods:
        return failed(check, "has no pod", INSTALL)
    waiting = [pod for pod in pods if not has_condition(pod, "Ready") and not is_over(pod)]
    if waiting:
        namespace, pod = key_of(waiting[0])
        why = _waiting_reason(waiting[0])
        return failed(
            check,
            f"{len(waiting)} of {len(pods)} pods are not ready: {namespace}/{pod}{why}",
            f"kubectl -n {namespace} describe pod {pod}; kubectl -n {namespace} logs {pod}",
        )
    ready = sum(not is_over(pod) for pod in pods)
    if ready < wanted:
        return failed(
            check,
            f"{ready} of {wanted} pods are there",
            f"kubectl get events -A --field-selector involvedObject.kind=ReplicaSet: why {name} lacks one",
        )
    return ok(check, f"{ready} ready")


def _waiting_reason(pod: JsonObject) -> str:
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        waiting = (status.get("state") or {}).get("waiting") or {}
        if waiting.get("reason"):
            return f" ({waiting['reason']})"
    return ""


def _has_gpus(node: JsonObject) -> bool:
    labels, capacity = labels_of(node), (node.get("status") or {}).get("capacity") or {}
    if any(name in labels and (not values or labels[name] in values) for name, values in _GPU_LABELS.items()):
        return True
    return any(
        name == "nvidia.com/gpu" or name.startswith(("nvidia.com/mig-", "gpuloom.dev/"))
        for name, amount in capacity.items()
        if str(amount) != "0"
    )


def _own_images(pod: JsonObject) -> Iterator[str]:
    containers = (pod.get("spec") or {}).get("containers") or ()
    return (image for container in containers if "gpuloom/" in (image := container.get("image", "")))


def _tag(image: str) -> str:
    """Empty for an image by digest: every service has another one."""
    name = image.rsplit("/", 1)[-1]
    return "" if "@" in name else name.partition(":")[2] or "latest"
