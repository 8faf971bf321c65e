"""PodDisruptionBudgets: how many pods may go now, and whether an eviction is allowed.

The arithmetic is pure; `refresh` writes it into the status of budgets whose pods have changed. Expected pods
are all that the selector matches: there are no controllers here whose scale could be asked for.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gpuloom.sim.kubeapi.objects.pods import is_ready, is_terminal
from gpuloom.sim.kubeapi.resources import PDB_KEY
from gpuloom.sim.kubeapi.selectors import Selector, label_query
from gpuloom.sim.kubeapi.status import ApiError
from gpuloom.sim.kubeapi.storage.collection import Entry, Event, Object
from gpuloom.sim.kubeapi.verbs.store import Store


@dataclass(frozen=True, slots=True)
class Budget:
    """What a PodDisruptionBudget allows at this moment."""

    expected: int
    healthy: int
    desired: int

    @property
    def allowed(self) -> int:
        return max(0, self.healthy - self.desired) if self.expected else 0


class Disruptions:
    """Budgets of one store. Hears of every change, so that only namespaces with changes are counted again."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pods = store.registry.get("pods")
        self._budgets = store.registry.get(PDB_KEY)
        self._changed = {entry.key[0] for entry in store.database.collection(self._budgets).entries()}
        store.listen(self._note)

    def refresh(self) -> None:
        """Bring the status of every budget up to date."""
        for namespace in sorted(self._changed):
            for entry in list(self._store.database.collection(self._budgets).entries(namespace)):
                self._refresh_one(entry)
        self._changed.clear()

    def require_evictable(self, pod: Object) -> None:
        """Raise 429 if a budget forbids it, 500 (as the real server) if several budgets cover the pod."""
        if (
            is_terminal(pod)
            or pod["metadata"].get("deletionTimestamp")
            or pod["status"].get("phase") == "Pending"
        ):
            return
        namespace = pod["metadata"]["namespace"]
        entries = self._store.database.collection(self._budgets).entries(namespace)
        covering = [entry for entry in entries if _covered(entry.obj, [pod])]
        if not covering:
            return
        if len(covering) > 1:
            raise ApiError(
                500,
                "This pod has more than one PodDisruptionBudget, which evictions do not support.",
            )
        self._require_budget(covering[0].obj, pod)

    def _require_budget(self, budget_object: Object, pod: Object) -> None:
        budget = self._measure(budget_object)
        if budget.allowed > 0 or _may_go_unhealthy(budget_object, budget, pod):
            return
        name = budget_object["metadata"]["name"]
        needs = (
            f"The disruption budget {name} needs {budget.desired} healthy pods"
            f" and has {budget.healthy} currently"
        )
        causes = [{"reason": "DisruptionBudget", "message": needs}]
        message = "Cannot evict pod as it would violate the pod's disruption budget."
        raise ApiError(429, message, details={"causes": causes})

    def _note(self, event: Event) -> None:
        if event.resource in (self._pods, self._budgets):
            self._changed.add(event.key[0])

    def _refresh_one(self, entry: Entry) -> None:
        budget = self._measure(entry.obj)
        old = entry.obj.get("status") or {}
        status = {
            **old,
            "currentHealthy": budget.healthy,
            "desiredHealthy": budget.desired,
            "disruptionsAllowed": budget.allowed,
            "expectedPods": budget.expected,
            "observedGeneration": entry.obj["metadata"].get("generation", 1),
        }
        self._store.replace(self._budgets, entry, {**entry.obj, "status": status})

    def _measure(self, budget: Object) -> Budget:
        pods = self._store.database.collection(self._pods).entries(budget["metadata"]["namespace"])
        return measure(budget, (entry.obj for entry in pods))


def measure(budget: Object, pods: Iterable[Object]) -> Budget:
    """Count the pods of a budget's namespace against it."""
    covered = _covered(budget, pods)
    healthy = sum(_is_healthy(pod) for pod in covered)
    spec = budget.get("spec") or {}
    if spec.get("maxUnavailable") is not None:
        desired = max(0, len(covered) - _scaled(spec["maxUnavailable"], len(covered)))
    elif spec.get("minAvailable") is not None:
        desired = _scaled(spec["minAvailable"], len(covered))
    else:
        desired = 1  # an empty budget asks for one
    return Budget(expected=len(covered), healthy=healthy, desired=desired)


def _covered(budget: Object, pods: Iterable[Object]) -> list[Object]:
    """The pods that the budget's selector matches: an empty one matches all, an absent one none."""
    selector = (budget.get("spec") or {}).get("selector")
    if selector is None:
        return []
    matcher = Selector(label_query(selector))
    return [pod for pod in pods if matcher.matches(pod)]


def _is_healthy(pod: Object) -> bool:
    running = (pod.get("status") or {}).get("phase") == "Running"
    return running and is_ready(pod) and not pod["metadata"].get("deletionTimestamp")


def _may_go_unhealthy(budget_object: Object, budget: Budget, pod: Object) -> bool:
    """A pod that is not ready costs the budget nothing: it may go when enough others are healthy."""
    if is_ready(pod):
        return False
    policy = (budget_object.get("spec") or {}).get("unhealthyPodEvictionPolicy")
    return policy == "AlwaysAllow" or (budget.healthy >= budget.desired > 0)


def _scaled(amount: int | str, total: int) -> int:
    """A number as it is, a percentage of the total rounded up."""
    if isinstance(amount, int):
        return amount
    text = amount.removesuffix("%")
    return -(-total * int(text) // 100)
