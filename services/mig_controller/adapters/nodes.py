"""The labels of NVIDIA's MIG manager on nodes: read one by one, and written under the node's version."""

from collections.abc import Callable

from gpuloom.errors import ConflictError, NotFoundError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import metadata_of, resource_version_of, uid_of
from gpuloom.kube.resources import NODES
from services.mig_controller.core.steering import LABEL_CAPABLE, LABEL_CONFIG, LABEL_STATE, SETTLED

_TIMEOUT_S = 3.0


class KubeNodeLabels:
    def __init__(self, client: KubeClient, write_timeout_s: Callable[[float], float]) -> None:
        self._client = client
        self._write_timeout_s = write_timeout_s

    async def read(self, node_name: str) -> tuple[str, str]:
        labels = (
            metadata_of(await self._client.get(NODES, node_name, timeout_s=_TIMEOUT_S)).get("labels") or {}
        )
        return str(labels.get(LABEL_CONFIG, "")), str(labels.get(LABEL_STATE, ""))

    async def ask(self, node_name: str, node_uid: str, config: str) -> str:
        node = await self._client.get(NODES, node_name, timeout_s=_TIMEOUT_S)
        labels = metadata_of(node).get("labels") or {}
        if uid_of(node) != node_uid:
            return "it is another node by now"
        if labels.get(LABEL_CAPABLE) != "true":
            return f"no MIG manager is at work there: its label {LABEL_CAPABLE} is not true"
        if labels.get(LABEL_STATE, "") not in SETTLED:
            return f"the MIG manager is at work on it: {labels[LABEL_STATE]}"
        if labels.get(LABEL_CONFIG) == config:
            return f"it was asked for {config} already; state: {labels.get(LABEL_STATE, 'none')}"
        patch = {"metadata": {"labels": {LABEL_CONFIG: config}}}
        try:
            await self._client.patch(
                NODES,
                node_name,
                None,
                patch,
                resource_version=resource_version_of(node),
                timeout_s=self._write_timeout_s(_TIMEOUT_S),
            )
        except (ConflictError, NotFoundError) as error:
            return f"it changed meanwhile: {error}"
        return ""
