"""Whether NVIDIA's dcgm-exporter runs on a node, and where it serves. Pure.

Decides by the pods that Kubernetes shows there. A pod is believed by its labels or its image, and only in the
namespaces that the operator of the cluster named: labels are for everybody to write, and who may create pods
in the named namespaces can silence our series and fill gaps.
"""

import ipaddress
from collections.abc import Collection, Iterator
from typing import Any

from gpuloom.kube.cache import Change
from gpuloom.kube.objects import JsonObject, ObjectKey, key_of, metadata_of

DEFAULT_PORT = 9400

_LABELS = (("app", "nvidia-dcgm-exporter"), ("app.kubernetes.io/name", "dcgm-exporter"))
_IMAGE = "dcgm-exporter"
_PORT_NAME = "metrics"


class DcgmPods:
    """Follows the pods of one node, change by change."""

    def __init__(self, node_name: str, namespaces: Collection[str]) -> None:
        """Only pods of these namespaces are believed."""
        self._node_name = node_name
        self._namespaces = frozenset(namespaces)
        self._urls: dict[ObjectKey, str] = {}

    def hear(self, change: Change) -> None:
        """For an informer of pods; pods of other nodes may be among them."""
        pod = change.new
        url = "" if pod is None or not self._believed(pod) else dcgm_url(pod)
        if url:
            self._urls[change.key] = url
        else:
            self._urls.pop(change.key, None)

    def url(self) -> str:
        """Where it serves its metrics; empty if it does not run here. Of several, the first by name."""
        return self._urls[min(self._urls)] if self._urls else ""

    def _believed(self, pod: JsonObject) -> bool:
        here = _object(pod, "spec").get("nodeName") == self._node_name
        return here and key_of(pod)[0] in self._namespaces


def dcgm_url(pod: JsonObject) -> str:
    """Where this pod serves GPU metrics; empty if it is no dcgm-exporter, or does not work."""
    status = _object(pod, "status")
    if status.get("phase") != "Running" or not _is_dcgm_exporter(pod):
        return ""
    # One that restarts again and again is Running too, and would leave the node without any metrics.
    if any(
        condition.get("type") == "Ready" and condition.get("status") == "False"
        for condition in _objects(status, "conditions")
    ):
        return ""
    try:
        address = ipaddress.ip_address(str(status.get("podIP") or ""))
    except ValueError:
        return ""
    host = f"[{address}]" if address.version == 6 else str(address)
    return f"http://{host}:{_port(pod)}/metrics"


def _is_dcgm_exporter(pod: JsonObject) -> bool:
    labels = _object(metadata_of(pod), "labels")
    if any(labels.get(name) == value for name, value in _LABELS):
        return True
    return any(_image_name(container.get("image")) == _IMAGE for container in _containers(pod))


def _image_name(image: Any) -> str:
    """`dcgm-exporter` of `nvcr.io:443/nvidia/k8s/dcgm-exporter:4.2@sha256:…`."""
    last = image.rsplit("/", 1)[-1] if isinstance(image, str) else ""
    return last.split("@", 1)[0].split(":", 1)[0]


def _port(pod: JsonObject) -> int:
    for container in _containers(pod):
        for port in _objects(container, "ports"):
            number = port.get("containerPort")
            if port.get("name") == _PORT_NAME and isinstance(number, int) and 0 < number < 65536:
                return number
    return DEFAULT_PORT


def _containers(pod: JsonObject) -> Iterator[JsonObject]:
    return _objects(_object(pod, "spec"), "containers")


def _object(parent: JsonObject, name: str) -> JsonObject:
    value = parent.get(name)
    return value if isinstance(value, dict) else {}


def _objects(parent: JsonObject, name: str) -> Iterator[JsonObject]:
    value = parent.get(name)
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else iter(())
