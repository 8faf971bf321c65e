"""What holds of others leave of a card for those who wait."""

import pytest

from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.claims import HoldOwner
from gpuloom.model.gpu import DeviceRef, Gpu, GpuHealth
from gpuloom.model.ledger import Hold
from gpuloom.model.mig import MigInstance
from gpuloom.model.node import Delivery, NodeMode, NodeState
from gpuloom.model.snapshot import NodeFacts
from services.mig_controller.core.cards import Card, Knowledge, cards_of
from services.mig_controller.core.plan import Options, Plan, plan
from tests.unit.mig_controller.builders import MODEL, a_wish, place

SERVICE = HoldOwner("Service", "autoscaler")
GANG = HoldOwner("Gang", "g", "team")


def cards(*holds: Hold) -> tuple[Card, ...]:
    small = MigInstance(place("1g.5gb@6"), 1, 4864, "MIG-a")
    gpus = (
        Gpu("GPU-a", 0, MODEL, "ampere", 40960, GpuHealth.HEALTHY, mig_enabled=True, mig_instances=(small,)),
        Gpu("GPU-b", 1, MODEL, "ampere", 40960, GpuHealth.HEALTHY),
    )
    node = NodeFacts(NodeState("n1", "uid-n1", NodeMode.GPULOOM, Delivery.NRI, gpus))
    return cards_of([node], Knowledge({}, holds=holds))


@pytest.mark.parametrize(("delivery", "takes_clients"), [(Delivery.NRI, True), (Delivery.ENV, False)])
def test_only_a_runtime_that_takes_our_devices_takes_what_makes_a_client_of_mps(
    delivery: Delivery, takes_clients: bool
) -> None:
    gpus = (Gpu("GPU-b", 1, MODEL, "ampere", 40960, GpuHealth.HEALTHY),)

    (card,) = cards_of(
        [NodeFacts(NodeState("n1", "uid-n1", NodeMode.GPULOOM, delivery, gpus))], Knowledge({})
    )

    assert (card.takes_clients, card.closed) == (takes_clients, "")


def held(uuid: str, mig: str = "", owner: HoldOwner = SERVICE) -> Hold:
    device = AllocatedDevice(DeviceRef(uuid, place(mig) if mig else None), 1000, 0)
    return Hold("h", "n1", owner, "a reservation", device=device)


def planned(*holds: Hold, gang: str = "") -> Plan:
    wish = a_wish("a", gang=gang)
    return plan(cards(*holds), [wish], Options(idle_ttl_s=0.0), 1000.0)


def test_a_slice_that_is_held_is_no_slice_for_a_pod_that_waits() -> None:
    (cut,) = planned(held("GPU-a", "1g.5gb@6")).cuts

    assert (cut.card.uuid, cut.destroy) == ("GPU-a", ())


def test_a_slice_that_is_held_for_its_gang_is() -> None:
    assert planned(held("GPU-a", "1g.5gb@6", GANG), gang="team/g").cuts == ()
    assert planned(held("GPU-a", "1g.5gb@6", GANG), gang="team/other").cuts != ()


@pytest.mark.parametrize("hold", [held("GPU-a"), held("GPU-a", "3g.20gb@0")])
def test_a_card_that_is_held_or_room_of_it_is_left_alone(hold: Hold) -> None:
    (cut,) = planned(hold).cuts

    assert cut.card.uuid == "GPU-b"


def test_nothing_is_cut_on_a_node_that_is_held() -> None:
    found = planned(Hold("h", "n1", SERVICE, "it is being drained"))

    assert found.cuts == ()
    assert "it is held: it is being drained" in found.unmet["uid-a"]
