"""What was asked of the simulated Kubernetes API and what became of it, counted there."""

import asyncio
from collections import Counter
from collections.abc import Callable

from gpuloom.kube.objects import JsonObject
from gpuloom.sim.kubeapi import SimKubeApi
from gpuloom.sim.kubeapi.storage.collection import Event
from tests.mesh.waiting import until

_WRITES = ("POST", "PUT", "PATCH", "DELETE")
_ENDLESS = 10**9
_QUIET_S = 1.5


class WriteCount:
    """Counts until its end: every request that could write, and every object that changed."""

    def __init__(self, api: SimKubeApi) -> None:
        self.changed: Counter[tuple[str, str]] = Counter()
        """How often each object changed, by resource and name; leases are renewed all the time."""
        self.events: list[JsonObject] = []
        """Every Kubernetes Event as it was made or counted up."""
        self._rules = {
            resource: [api.faults.delay_next(method, path, 0.0, _ENDLESS) for method in _WRITES]
            for resource, path in {
                "nodes/status": r"^/api/v1/nodes/[^/]+/status$",
                "nodes": r"^/api/v1/nodes(/[^/]+)?$",
                "pods": r"/pods(/|$)",
                "events": r"/events(/|$)",
                "leases": r"/leases(/|$)",
                "all": r".",
            }.items()
        }
        self._ended: dict[str, int] | None = None
        api.store.listen(self._hear)

    def sent(self, resource: str) -> int:
        """Requests that could write to it."""
        if self._ended is not None:
            return self._ended[resource]
        return sum(rule.held for rule in self._rules[resource])

    def sent_elsewhere(self) -> int:
        known = ("nodes/status", "nodes", "pods", "events", "leases")
        return self.sent("all") - sum(map(self.sent, known))

    def written_nodes(self) -> dict[str, int]:
        return {name: count for (resource, name), count in self.changed.items() if resource == "nodes"}

    def events_by_reason(self) -> Counter[tuple[str, str]]:
        return Counter((event["involvedObject"]["name"], event["reason"]) for event in self.events)

    def end(self) -> None:
        """What happens from now on does not count."""
        self._ended = {resource: self.sent(resource) for resource in self._rules}

    def _hear(self, event: Event) -> None:
        if self._ended is not None or event.resource.key.startswith("leases"):
            return
        self.changed[event.resource.key, event.key[1]] += 1
        if event.resource.key == "events" and event.new is not None:
            self.events.append(event.new.obj)


async def until_quiet(api: SimKubeApi, holds: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Return when the condition holds and nothing but leases was written for longer than a round takes."""
    loop = asyncio.get_running_loop()
    busy_s = loop.time()

    def hear(event: Event) -> None:
        nonlocal busy_s
        if not event.resource.key.startswith("leases"):
            busy_s = loop.time()

    api.store.listen(hear)
    await until(lambda: holds() and loop.time() - busy_s > _QUIET_S, timeout_s)
