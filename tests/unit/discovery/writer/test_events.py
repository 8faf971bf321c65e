from gpuloom.kube.objects import JsonObject
from gpuloom.runtime.clock import FakeClock
from services.discovery.core.cluster import TrustChange
from services.discovery.core.findings import Cause, Finding
from services.discovery.writer.events import TrustEvents

SILENT = Finding(Cause.AGENT_SILENT)
NOT_HEARD = Finding(Cause.AGENT_NOT_HEARD)


class Book:
    """Every Event as (node, reason, message), in the order in which they were recorded."""

    def __init__(self, *names: str) -> None:
        self.clock = FakeClock()
        self.told: list[tuple[str, str, str]] = []
        self.nodes: dict[str, JsonObject] = {
            name: {"metadata": {"name": name, "uid": f"uid-{name}"}} for name in names
        }
        self.events = TrustEvents(self, self.nodes.get, self.clock)

    def warning(self, obj: JsonObject, reason: str, message: str) -> None:
        assert (obj["apiVersion"], obj["kind"]) == ("v1", "Node")
        self.told.append((obj["metadata"]["name"], reason, message))

    def reasons(self) -> list[tuple[str, str]]:
        return [(name, reason) for name, reason, _ in self.told]


def appeared(*findings: Finding, node: str = "n1") -> list[TrustChange]:
    return [TrustChange(node, f"uid-{node}", finding, appeared=True) for finding in findings]


def gone(*findings: Finding, node: str = "n1") -> list[TrustChange]:
    return [TrustChange(node, f"uid-{node}", finding, appeared=False) for finding in findings]


def second_owner(letter: str) -> Finding:
    return Finding(Cause.SECOND_OWNER, f"GPU-{letter}", detail=f"owners of {letter}")


def test_a_cause_is_told_once_for_each_node() -> None:
    book = Book("n1", "n2")

    book.events.tell([*appeared(SILENT), *appeared(SILENT, node="n2")])
    book.events.tell([])

    assert book.reasons() == [("n1", "AgentSilent"), ("n2", "AgentSilent")]


def test_several_gpus_with_one_cause_are_one_event() -> None:
    book = Book("n1")

    book.events.tell(appeared(second_owner("a"), second_owner("b")))

    ((_, reason, message),) = book.told
    assert reason == "SecondOwner"
    assert message.startswith("GPU-a, GPU-b are not given out")


def test_more_of_a_cause_that_stands_repeats_its_event_word_by_word() -> None:
    book = Book("n1")
    book.events.tell(appeared(second_owner("a")))

    book.events.tell(appeared(second_owner("b")))

    assert len(book.told) == 2
    assert len(set(book.told)) == 1


def test_a_cause_that_was_gone_is_told_anew() -> None:
    book = Book("n1")
    book.events.tell(appeared(second_owner("a")))

    book.events.tell(gone(second_owner("a")))
    book.events.tell(appeared(second_owner("b")))

    assert [message[:5] for _, _, message in book.told] == ["GPU-a", "GPU-b"]


async def test_a_node_whose_agent_comes_in_time_gets_no_event() -> None:
    book = Book("n1")
    book.events.tell(appeared(NOT_HEARD))

    await book.clock.advance(59)
    book.events.tell(gone(NOT_HEARD))
    await book.clock.advance(60)
    book.events.tell([])

    assert book.told == []


async def test_an_agent_that_does_not_come_is_told_though_nothing_happens() -> None:
    book = Book("n1")
    book.events.tell(appeared(NOT_HEARD))

    await book.clock.advance(60)
    book.events.tell([])
    book.events.tell([])

    assert book.reasons() == [("n1", "AgentNotHeard")]


def test_a_newly_elected_replica_tells_what_stands() -> None:
    book = Book("n1")
    book.events.tell(appeared(second_owner("a")))

    book.events.start(appeared(second_owner("a"), second_owner("b")))

    assert [message[:12] for _, _, message in book.told] == ["GPU-a is not", "GPU-a, GPU-b"]


def test_nothing_is_said_of_a_node_that_is_gone_or_another_by_now() -> None:
    book = Book("n1")
    del book.nodes["n1"]

    book.events.tell(appeared(SILENT))
    book.nodes["n1"] = {"metadata": {"name": "n1", "uid": "uid-new"}}
    book.events.tell(appeared(second_owner("a")))

    assert book.told == []
