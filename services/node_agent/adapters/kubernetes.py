"""This node and its pods, from an informer."""

from gpuloom.codec.pod import is_terminal
from gpuloom.kube.informer import Informer
from gpuloom.kube.objects import metadata_of

MAX_SILENCE_S = 60.0


class InformedPods:
    """The pods of one node out of an informer that holds them; `nodes` holds at least this node."""

    def __init__(self, node_name: str, nodes: Informer, pods: Informer) -> None:
        self._node_name = node_name
        self._nodes = nodes
        self._pods = pods

    def unsynced_reason(self) -> str:
        """Identity by name needs fresh news: a pod of the same name may have been made anew."""
        if not (self._nodes.synced and self._pods.synced):
            return "pods are not listed yet"
        if self._pods.last_contact_age_s() > MAX_SILENCE_S:
            return "the Kubernetes API is silent"
        return ""

    def node_uid(self) -> str:
        node = self._nodes.get(self._node_name)
        return "" if node is None else str(metadata_of(node).get("uid", ""))

    def uid_of(self, namespace: str, name: str) -> str:
        pod = self._pods.get(name, namespace)
        if pod is None or is_terminal(pod) or pod.get("spec", {}).get("nodeName") != self._node_name:
            return ""
        return str(metadata_of(pod).get("uid", ""))
