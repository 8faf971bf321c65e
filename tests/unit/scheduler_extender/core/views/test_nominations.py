"""Nominated pods: who comes first, what a node has left beside them, and that they never block each other."""

from dataclasses import replace
from functools import partial
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.kube.cache import Change
from gpuloom.model.request import PodRequest
from gpuloom.placement.choose import choose_devices
from gpuloom.placement.devices import NodeView
from gpuloom.placement.fit import Fit, Refusal, fit
from gpuloom.placement.occupancy.nominations import (
    NOBODY,
    Asker,
    Nomination,
    Nominations,
    Remainders,
    beside,
)
from gpuloom.placement.occupancy.taken import with_taken
from gpuloom.placement.potential import neutral_prices
from gpuloom.placement.reasons import KEPT
from services.scheduler_extender.core.objects.pods import asker_of, nomination_of
from services.scheduler_extender.core.verbs.filtering import filter_nodes
from services.scheduler_extender.core.verbs.node_names import OfferedNames
from services.scheduler_extender.core.views.views import Views
from tests.effort import examples
from tests.unit.placement.builders import a_card, a_share, whole
from tests.unit.placement.builders import a_node as a_view
from tests.unit.placement.strategies import nodes, requests
from tests.unit.scheduler_extender.builders import a_pod, a_ref, an_allocation, an_observed_pod
from tests.unit.scheduler_extender.builders import given as given_card
from tests.unit.scheduler_extender.core.views.test_fleet_in_step import NAMES, STEPS, Cluster, asked
from tests.unit.scheduler_extender.nominated_pods import EARLY, LATE, a_ranked_pod

PRICES = neutral_prices()
TIMES = st.sampled_from([EARLY, LATE])
PRIORITIES = st.integers(-1, 2)
NOMINATING = ("nominate", "nominate no longer")


def a_nomination(
    uid: str, priority: int = 0, request: PodRequest | None = None, *, created: str = EARLY
) -> Nomination:
    return Nomination(Asker(uid, priority, created, "node"), request or whole(1))


def a_book(*nominations: Nomination) -> Nominations:
    book = Nominations()
    for nomination in nominations:
        book.note(nomination.asker.uid, nomination)
    return book


def uids(nominations: tuple[Nomination, ...]) -> list[str]:
    return [nomination.asker.uid for nomination in nominations]


def test_the_higher_priority_comes_first_then_the_older_pod_then_the_lower_uid() -> None:
    book = a_book(
        a_nomination("young", created=LATE),
        a_nomination("b"),
        a_nomination("urgent", 5, created=LATE),
        a_nomination("a"),
    )

    ahead = book.ahead_of(Asker("stranger"), "node")

    assert uids(ahead) == ["urgent", "a", "b", "young"]


def test_a_pod_leaves_room_for_those_of_at_least_its_priority() -> None:
    book = a_book(a_nomination("low", 1), a_nomination("high", 3))

    seen = [uids(book.ahead_of(Asker("stranger", priority), "node")) for priority in (0, 1, 2, 3, 4)]

    assert seen == [["high", "low"], ["high", "low"], ["high"], ["high"], []]
    assert book.ahead_of(Asker("stranger"), "elsewhere") == ()
    assert book.ahead_of(NOBODY, "node") == ()


def test_a_nominated_pod_leaves_room_only_for_those_before_it() -> None:
    first, second, third = (a_nomination(name) for name in ("a", "b", "c"))
    book = a_book(third, first, second)

    ahead = [uids(book.ahead_of(entry.asker, "node")) for entry in (first, second, third)]

    assert ahead == [[], ["a"], ["a", "b"]]


def test_a_pod_is_nominated_whether_itself_or_the_informer_says_so_first() -> None:
    book = a_book(a_nomination("a"), a_nomination("b"))
    not_heard_of = Asker("0", created=EARLY, nominated_node="node")
    not_told = Asker("a", created=EARLY)

    assert book.ahead_of(not_heard_of, "node") == ()
    assert book.ahead_of(not_told, "node") == ()


def test_a_pod_is_never_held_back_by_itself() -> None:
    book = a_book(a_nomination("a", 3))

    assert book.ahead_of(Asker("a"), "node") == ()


def test_what_a_pod_no_longer_is_promised_is_told_once() -> None:
    book, there = Nominations(), a_nomination("a")
    elsewhere = Nomination(replace(there.asker, nominated_node="other"), there.request)

    left = [book.note("a", nomination) for nomination in (there, there, elsewhere, None, None)]

    assert left == ["", "", "node", "other", ""]
    assert not book
    assert not book.nodes()


def test_beside_a_nominated_pod_the_rest_of_the_node_is_free() -> None:
    view = a_view(a_card(0), a_card(1), a_card(2))

    left = beside(view, (a_nomination("a", request=whole(2)),), PRICES)

    assert sum(card.untouched for card in left.gpus) == 1
    assert not left.closed_reason


def test_a_share_is_kept_on_the_card_where_a_bind_would_put_it() -> None:
    view = a_view(a_card(0), a_card(1, 500))

    left = beside(view, (a_nomination("a", request=a_share(500)),), PRICES)

    assert [card.free_milli for card in left.gpus] == [1000, 0]


def test_while_a_nominated_pod_does_not_fit_everything_free_is_kept_for_it() -> None:
    view = a_view(a_card(0), a_card(1, 0))

    left = beside(view, (a_nomination("a", request=whole(2)),), PRICES)

    assert left.closed_reason == KEPT


def test_a_pod_that_could_never_fit_there_keeps_nothing() -> None:
    view = a_view(a_card(0), a_card(1))

    assert beside(view, (a_nomination("a", request=whole(3)),), PRICES) is view


def test_a_closed_node_stays_closed_for_its_own_reason() -> None:
    view = a_view(a_card(0), closed_reason="device facts are stale")

    assert beside(view, (a_nomination("a"),), PRICES) is view


def test_what_is_left_is_worked_out_once_until_node_or_pods_change() -> None:
    remainders, view = Remainders(), a_view(a_card(0), a_card(1))
    ahead = (a_nomination("a"),)
    first = remainders.beside(view, ahead, PRICES)

    again = remainders.beside(view, ahead, PRICES)
    more = remainders.beside(view, (*ahead, a_nomination("b")), PRICES)
    smaller = remainders.beside(a_view(a_card(0)), ahead, PRICES)

    assert again is first
    assert sum(card.untouched for card in more.gpus) == 0
    assert len(smaller.gpus) == 1


def test_only_a_pod_that_will_be_bound_is_promised_anything() -> None:
    waiting = a_ranked_pod("pod", 7, nominated="node")
    bound, ended, going, strange, plain = (a_ranked_pod("pod", 7, nominated="node") for _ in range(5))
    bound["spec"]["nodeName"] = "node"
    ended["status"]["phase"] = "Failed"
    going["metadata"]["deletionTimestamp"] = LATE
    strange["metadata"]["annotations"] = a_pod(allocation="?")["metadata"]["annotations"]
    plain["status"]["nominatedNodeName"] = ""

    found = nomination_of(waiting, an_observed_pod(waiting))

    assert found is not None
    assert found.asker == Asker("uid-pod", 7, EARLY, "node")
    for other in (bound, ended, going, strange, plain):
        assert nomination_of(other, an_observed_pod(other)) is None


def test_a_pod_that_carries_an_allocation_of_its_own_is_promised_nothing() -> None:
    ref = a_ref("pod")
    pod = a_pod(ref, allocation=an_allocation(ref, given_card("GPU-0")))
    pod["status"]["nominatedNodeName"] = "node"

    assert nomination_of(pod, an_observed_pod(pod)) is None


@given(st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=3))
def test_an_asker_is_read_from_whatever_comes(value: object) -> None:
    whatever = {"priority": value, "uid": value, "creationTimestamp": value, "nominatedNodeName": value}

    found = [asker_of({"metadata": part, "spec": part, "status": part}) for part in (whatever, value)]

    assert all(isinstance(asker.priority, int) and isinstance(asker.uid, str) for asker in found)
    assert found[1] == Asker("")


@settings(max_examples=examples(200))
@given(view=nodes(), nominated=requests(), other=requests())
def test_whatever_another_pod_takes_beside_it_a_nominated_pod_that_fits_still_fits(
    view: NodeView, nominated: PodRequest, other: PodRequest
) -> None:
    left = beside(view, (a_nomination("a", request=nominated),), PRICES)
    devices = choose_devices(other, left, PRICES)

    if isinstance(fit(nominated, view), Fit) and not isinstance(devices, Refusal):
        assert isinstance(fit(nominated, with_taken(view, other, devices)), Fit)


class Queue:
    """Pods that ask for one node again and again, and what is left of it."""

    def __init__(self, view: NodeView, nominated: list[Nomination], strangers: list[Nomination]) -> None:
        self.view = view
        self.book = a_book(*nominated)
        self.waiting = {entry.asker.uid: entry for entry in (*nominated, *strangers)}

    def first(self) -> Nomination | None:
        """The nominated pod that comes before all others."""
        return min(
            (entry for entry in self.waiting.values() if entry.node_name),
            key=lambda entry: entry.asker.place,
            default=None,
        )

    def ask(self, uid: str) -> None:
        entry = self.waiting.get(uid)
        if entry is None:
            return
        seen = beside(self.view, self.book.ahead_of(entry.asker, "node"), PRICES)
        devices = choose_devices(entry.request, seen, PRICES)
        if not isinstance(devices, Refusal):
            self.view = with_taken(self.view, entry.request, devices)
            del self.waiting[uid]
            self.book.note(uid, None)


@st.composite
def queues(draw: st.DrawFn) -> Queue:
    """Strangers are nominated to no node, and of no higher priority than any nominated pod."""

    def entry(uid: str, node: str, priority: int) -> Nomination:
        request = draw(st.sampled_from([whole(1), whole(2), a_share(400), a_share(700)]))
        return Nomination(Asker(uid, priority, draw(TIMES), node), request)

    cards = draw(st.lists(st.sampled_from([0, 500, 1000]), min_size=1, max_size=4))
    nominated = [entry(f"n{i}", "node", draw(PRIORITIES)) for i in range(draw(st.integers(1, 4)))]
    strangers = [entry(f"s{i}", "", -1) for i in range(draw(st.integers(0, 3)))]
    return Queue(a_view(*(a_card(i, free) for i, free in enumerate(cards))), nominated, strangers)


@settings(max_examples=examples(300))
@given(queue=queues(), data=st.data())
def test_in_whatever_order_pods_ask_the_first_nominated_one_gets_its_room(
    queue: Queue, data: st.DataObject
) -> None:
    """So every round in which it fits places it, and after as many rounds as there are pods none waits that
    is first and fits: no deadlock, and none is starved by those after it.
    """
    for _ in range(len(queue.waiting)):
        first = queue.first()
        fits = first is not None and isinstance(fit(first.request, queue.view), Fit)
        for uid in data.draw(st.permutations(sorted(queue.waiting))):
            queue.ask(uid)

        assert first is None or not fits or first.asker.uid not in queue.waiting


@given(st.lists(st.tuples(PRIORITIES, TIMES), min_size=2, max_size=5))
def test_of_two_pods_nominated_to_one_node_exactly_one_leaves_room_for_the_other(
    drawn: list[tuple[int, str]],
) -> None:
    entries = [a_nomination(str(i), priority, created=at) for i, (priority, at) in enumerate(drawn)]
    book = a_book(*entries)

    ahead = {entry.asker.uid: set(uids(book.ahead_of(entry.asker, "node"))) for entry in entries}

    for one, other in combinations(ahead, 2):
        assert (one in ahead[other]) != (other in ahead[one])


@settings(max_examples=examples(150))
@given(
    steps=st.lists(st.tuples(st.sampled_from([*STEPS, *NOMINATING * 3]), st.integers(0, 2)), max_size=25),
    milli=st.sampled_from([500, 1000, 2000]),
    askers=st.lists(st.tuples(st.integers(0, 3), PRIORITIES, st.sampled_from(["", *NAMES])), min_size=1),
)
def test_whatever_is_kept_every_pod_is_answered_as_by_views_made_anew(
    steps: list[tuple[str, int]], milli: int, askers: list[tuple[int, int, str]]
) -> None:
    """Pods of several priorities ask in turn, some of them nominated themselves."""
    cluster = Cluster()
    state = cluster.state
    for number in range(len(NAMES)):
        cluster.take("appear", number)
        cluster.take("facts", number)

    for turn, (step, number) in enumerate(steps):
        if step in NOMINATING:
            node = NAMES[number] if step == "nominate" else ""
            pod = a_ranked_pod(f"pod-{turn % 3}", number - 1, nominated=node)
            state.observe_pod(Change(None, pod))
        else:
            cluster.take(step, number)
        who, priority, nominated = askers[turn % len(askers)]
        asker = Asker(f"uid-pod-{who}", priority, LATE, nominated)
        viewer = state.views.viewer(asker)
        scratch = Views(state.ledger, state.hosts, lambda: cluster.stale, state.nominations)

        by_fleet, by_views, anew = (
            filter_nodes(asked(milli), OfferedNames(NAMES), view_of, cluster.evaluator, 2)
            for view_of in (viewer, viewer.__call__, partial(scratch.view, asker=asker))
        )

        assert by_fleet == by_views == anew
