"""Nodes and a model for the writer, as small as it needs them."""

from typing import cast

from gpuloom.kube.cache import Change
from gpuloom.kube.informer import ChangeHandler, Informer
from gpuloom.kube.objects import JsonObject
from gpuloom.model.node import NodeMode
from services.discovery.core.cluster import ClusterModel, TrustChange
from services.discovery.core.desired import Desired


class FakeNodes:
    """Nodes without anything on them, so that there is always something to write."""

    def __init__(self, *names: str) -> None:
        self._nodes: dict[str, JsonObject] = {}
        self._versions: dict[str, int] = {}
        self._handlers: list[ChangeHandler] = []
        for name in names:
            self.change(name)

    def as_informer(self) -> Informer:
        return cast(Informer, self)

    def get(self, name: str, namespace: str = "") -> JsonObject | None:
        return self._nodes.get(name)

    def objects(self) -> list[JsonObject]:
        return list(self._nodes.values())

    def on_change(self, handler: ChangeHandler) -> None:
        self._handlers.append(handler)

    def change(self, name: str) -> None:
        """Another version, written by whomever."""
        self._versions[name] = self._versions.get(name, 0) + 1
        version = str(self._versions[name])
        metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": version}
        self._nodes[name] = {"metadata": metadata, "status": {}}

    def tell(self, name: str) -> None:
        for handler in self._handlers:
            handler(Change(None, self._nodes[name]))


class FakeModel:
    """Wants eight GPUs on every node, and distrusts nobody."""

    def as_model(self) -> ClusterModel:
        return cast(ClusterModel, self)

    def desired(self, node_uid: str) -> Desired | None:
        return Desired(NodeMode.GPULOOM, 8, 1000)

    def standing_distrust(self) -> list[TrustChange]:
        return []
