"""Which order of nodes a pod's strategy wants, by its annotation; and which nodes are labelled as cheap.

A plug-in that fails is left out for that pod, whose nodes are then ordered by our score: a filter never fails
because of it.
"""

import logging
from collections.abc import Mapping

from gpuloom.kube.cache import Change
from gpuloom.kube.objects import JsonObject, metadata_of, uid_of
from gpuloom.names import ANNOTATION_STRATEGY
from gpuloom.placement.strategies import LABEL_CHEAP, Fitting, Floats, Order, Strategy, order_of

_log = logging.getLogger(__name__)


class Strategies:
    def __init__(self, plug_ins: Mapping[str, Strategy]) -> None:
        self._plug_ins = plug_ins
        self._cheap: set[str] = set()

    def observe_node(self, change: Change) -> None:
        name = change.key[1]
        labels = metadata_of(change.new or {}).get("labels") or {}
        if labels.get(LABEL_CHEAP) == "true":
            self._cheap.add(name)
        else:
            self._cheap.discard(name)

    def of(self, pod: JsonObject) -> Order | None:
        annotations = metadata_of(pod).get("annotations")
        name = annotations.get(ANNOTATION_STRATEGY) if isinstance(annotations, dict) else None
        if not isinstance(name, str):
            return None
        order = order_of(name, uid_of(pod), self._cheap, self._plug_ins)
        return order if order is None or name not in self._plug_ins else _guarded(name, order)


def _guarded(name: str, order: Order) -> Order:
    def guarded(nodes: Fitting) -> Floats:
        try:
            return order(nodes)
        except Exception as error:  # noqa: BLE001 - it is somebody else's code
            _log.warning("strategy left out", extra={"strategy": name, "reason": repr(error)[:200]})
            return 0.0 * nodes.free_gpus

    return guarded
