"""A force-deleted pod: Kubernetes and its kubelet forget it at once, its containers run out their grace."""

from pathlib import Path

import pytest

from gpuloom.model.node import NodeMode
from gpuloom.runtime.clock import FakeClock
from gpuloom.sim.kubelet.host import Behaviour, Host
from gpuloom.sim.machines.audit import FindingKind, audit
from gpuloom.sim.machines.machine import Machine
from services.node_agent.adapters.simulated import SimulatedCgroups
from tests.unit.sim.builders import a_machine, a_pod

GRACE_S = 20
STUBBORN = {"sim.gpuloom.dev/sigterm": "ignored"}
IDLE = {"sim.gpuloom.dev/load": "0"}


def a_host(folder: Path, clock: FakeClock) -> Host:
    return Host(a_machine(folder, mode=NodeMode.NVIDIA), Behaviour(seed=1, max_publish_delay_s=0.0), clock)


def start(host: Host, name: str = "p", cards: int = 4, notes: dict[str, str] | None = None) -> None:
    resources = {"nvidia.com/gpu": str(cards)}
    host.admit(a_pod(name, resources, annotations=notes or {}, terminationGracePeriodSeconds=GRACE_S))


@pytest.mark.parametrize(("load", "processes"), [("0", 0), ("0.5", 4)])
async def test_it_leaves_podresources_at_once_and_its_cards_when_its_grace_is_over(
    tmp_path: Path, load: str, processes: int
) -> None:
    clock = FakeClock()
    host = a_host(tmp_path, clock)
    start(host, notes={**STUBBORN, "sim.gpuloom.dev/load": load})
    listed = host.published()

    host.stop_soon("uid-p", vanished=True)
    host.stop_soon("uid-p", vanished=True)

    hosted = host.hosted["uid-p"]
    assert (len(listed), host.published()) == (1, ())
    assert (hosted.stops_at_s or 0.0) - host.now_s() == GRACE_S
    assert len(host.machine.read(clock.now()).processes) == processes
    assert (await SimulatedCgroups(host.machine, clock).presence()).pod_uids == ("uid-p",)
    host.exit("uid-p", killed=True)
    assert (await SimulatedCgroups(host.machine, clock).presence()).pod_uids == ()
    host.close()


async def test_a_container_that_heeds_the_signal_stops_within_its_grace(tmp_path: Path) -> None:
    host = a_host(tmp_path, FakeClock())
    lingering = []

    for number in range(20):
        start(host, f"p{number}", cards=0)
        host.stop_soon(f"uid-p{number}", vanished=True)
        lingering.append((host.hosted[f"uid-p{number}"].stops_at_s or 0.0) - host.now_s())
    host.close()

    assert 0 <= min(lingering) < GRACE_S / 3
    assert GRACE_S * 2 / 3 < max(lingering) <= GRACE_S


async def test_the_order_to_stop_is_not_put_off_by_a_forced_deletion_after_it(tmp_path: Path) -> None:
    clock = FakeClock()
    host = a_host(tmp_path, clock)
    start(host)
    host.stop_soon("uid-p", vanished=False)
    told = host.hosted["uid-p"].stops_at_s

    await clock.advance(0.05)
    host.stop_soon("uid-p", vanished=True)
    host.close()
    again = Host(Machine.open(tmp_path / "n1"), Behaviour(), clock)

    assert again.hosted["uid-p"].stops_at_s == told
    assert again.published() == ()
    again.close()


async def test_the_audit_sees_who_is_given_a_card_while_the_pod_before_still_has_it(tmp_path: Path) -> None:
    """As a real kubelet, this one soon counts the cards of a pod that it forgot as free."""
    clock = FakeClock()
    host = a_host(tmp_path, clock)
    start(host, cards=8, notes=STUBBORN | IDLE)
    host.stop_soon("uid-p", vanished=True)

    start(host, "too-early")
    await clock.advance(5.0)
    start(host, "next", cards=8)
    host.close()

    kinds = [finding.kind for finding in audit(tmp_path).findings]
    assert kinds == [FindingKind.OVERBOOKED, *[FindingKind.TWO_WHOLE_OWNERS] * 8]
