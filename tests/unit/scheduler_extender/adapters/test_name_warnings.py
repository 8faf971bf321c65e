"""A pod with misspelled names of ours gets one Event, from the leader."""

from gpuloom.kube.cache import Change
from gpuloom.kube.events import EventRecorder
from gpuloom.runtime.clock import FakeClock
from services.scheduler_extender.adapters.name_warnings import MAX_UNTOLD, REASON, NameWarnings
from tests.unit.kube.test_events import MemoryEvents
from tests.unit.scheduler_extender.builders import JsonObject, a_pod, a_ref

MISSPELLED = {"gpuloom.dev/gpu-modell": "A100"}


class Desk:
    def __init__(self, leads: bool = True) -> None:
        self.api, self.clock, self.leads = MemoryEvents(), FakeClock(), leads
        self.recorder = EventRecorder(self.api, "extender", "extender-0", self.clock)
        self.warnings = NameWarnings(self.recorder, self.clock, lambda: self.leads)

    async def show(self, *pods: JsonObject) -> None:
        for pod in pods:
            self.warnings.observe(Change(None, pod))
        await self.warnings.tell()


async def test_the_event_names_what_is_wrong_and_what_was_meant() -> None:
    desk = Desk()

    await desk.show(a_pod(a_ref("good")), a_pod(a_ref("bad"), annotations=MISSPELLED))

    (event,) = desk.api.events.values()
    assert (event["involvedObject"]["name"], event["reason"]) == ("bad", REASON)
    assert "did you mean gpuloom.dev/gpu-model?" in event["message"]


async def test_a_standby_tells_when_it_comes_to_lead_but_not_of_pods_that_are_gone() -> None:
    desk = Desk(leads=False)
    gone, waiting = (a_pod(a_ref(name), annotations=MISSPELLED) for name in ("gone", "waiting"))

    await desk.show(gone, waiting)
    desk.warnings.observe(Change(gone, None))
    told_before = len(desk.api.events)
    desk.leads = True
    await desk.warnings.tell()

    assert told_before == 0
    assert [event["involvedObject"]["name"] for event in desk.api.events.values()] == ["waiting"]


async def test_a_flood_of_such_pods_is_bounded() -> None:
    desk = Desk(leads=False)

    await desk.show(*(a_pod(a_ref(f"p{n}"), annotations=MISSPELLED) for n in range(MAX_UNTOLD + 5)))

    assert len(desk.warnings._untold) == MAX_UNTOLD
