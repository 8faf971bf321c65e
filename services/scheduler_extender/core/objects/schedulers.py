"""Which schedulers ask this extender: those that are configured, and those whose pods it was asked about."""

from collections.abc import Iterable

from gpuloom.kube.objects import JsonObject

DEFAULT_SCHEDULER = "default-scheduler"
MAX_NAMES = 64


class SchedulerNames:
    def __init__(self, configured: Iterable[str] = ()) -> None:
        self._names = dict.fromkeys(configured)

    def __bool__(self) -> bool:
        return bool(self._names)

    def names(self) -> list[str]:
        return sorted(self._names)

    def note_call(self, pod: JsonObject) -> None:
        """A scheduler asks about this pod."""
        name = scheduler_of(pod)
        if name not in self._names and len(self._names) < MAX_NAMES:
            self._names[name] = None

    def serve(self, pod: JsonObject) -> bool:
        """Whether one of them has this pod, as far as is known."""
        return not self._names or scheduler_of(pod) in self._names


def scheduler_of(pod: JsonObject) -> str:
    spec = pod.get("spec")
    name = spec.get("schedulerName") if isinstance(spec, dict) else None
    return name if isinstance(name, str) and name else DEFAULT_SCHEDULER
