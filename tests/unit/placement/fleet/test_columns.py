"""However a row came to be what it is, it holds what its node's view says."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.model.gpu import Gpu, GpuHealth
from gpuloom.model.node import Delivery, NodeMode
from gpuloom.model.request import TopologyPreference
from gpuloom.placement.devices import GpuView, HostCapacity, NodeView
from gpuloom.placement.fleet.columns import STANDS, Columns
from tests.unit.placement.builders import MEMORY_MIB, a_card, a_node, a_shaped_node

MACHINES = ((3, "A100-SXM4-40GB"), (3, "A100-SXM4-80GB"), (2, "A100-SXM4-40GB"))
CARDS: tuple[tuple[Gpu, ...], ...] = tuple(
    tuple(
        replace(a_card(index, health=health, model=model).gpu, uuid=f"GPU-{machine}-{index}")
        for index, health in enumerate((GpuHealth.HEALTHY, GpuHealth.HEALTHY, GpuHealth.LOST)[:count])
    )
    for machine, (count, model) in enumerate(
        ((3, "A100-SXM4-40GB"), (3, "A100-SXM4-80GB"), (2, "A100-SXM4-40GB"))
    )
)
FREE = st.sampled_from([(1000, MEMORY_MIB), (500, MEMORY_MIB // 2), (0, 0), (1000, 0)])
HOSTS = st.none() | st.builds(
    HostCapacity, st.just(8000), st.sampled_from([0, 4000]), st.just(1 << 30), st.sampled_from([0, 1 << 20])
)


@st.composite
def views(draw: st.DrawFn) -> NodeView:
    """The same few machines again and again, used otherwise each time."""
    gpus = tuple(
        GpuView(gpu, *draw(FREE), closed_reason=draw(st.sampled_from(["", "", "closed"])))
        for gpu in draw(st.sampled_from(CARDS))
    )
    return NodeView(
        name=draw(st.sampled_from(["a", "b"])),
        uid="uid",
        mode=draw(st.sampled_from(NodeMode)),
        delivery=Delivery.NRI,
        gpus=gpus,
        closed_reason=draw(st.sampled_from(["", "", "closed"])),
        host=draw(HOSTS),
    )


@given(st.lists(views(), min_size=1, max_size=12))
def test_a_row_that_was_written_many_times_is_as_if_written_once(history: list[NodeView]) -> None:
    columns, fresh = Columns(), Columns()
    for view in history:
        columns.put(view)

    newest = {view.name: view for view in history}
    for name in columns.names():
        fresh.put(newest[name])

    rows = columns.rows(list(newest)), fresh.rows(list(newest))
    kept, written = (kind.cells(of_kind) for kind, of_kind in zip((columns, fresh), rows, strict=True))
    everywhere = range(len(STANDS))
    assert columns.whole_cards(everywhere) == fresh.whole_cards(everywhere)
    assert np.array_equal(kept.of_node("whole"), written.of_node("whole"))
    for column in ("stand", "gpu_milli", "host_known", "cpu_milli", "memory_bytes", "cpu_total_milli"):
        assert np.array_equal(kept.of_node(column), written.of_node(column))
    for column in ("memory_mib", "free_milli", "free_memory_mib", "share_milli", "is_card", "is_usable"):
        assert np.array_equal(kept.of_gpu(column), written.of_gpu(column))
    for column in ("cards", "usable", "free"):
        assert np.array_equal(kept.masks(column), written.masks(column))
    assert {kind: columns.kinds.users(number) for number, kind in columns.kinds.items()} == {
        kind: fresh.kinds.users(number) for number, kind in fresh.kinds.items()
    }


@given(st.lists(views(), min_size=1, max_size=8))
def test_nodes_are_counted_by_their_free_cards_where_they_stand(history: list[NodeView]) -> None:
    columns = Columns()

    for view in history:
        columns.put(view)

    for number, stand in enumerate(STANDS):
        free = [
            sum(card.untouched and not card.unusable_reason for card in view.gpus)
            for view in {view.name: view for view in history}.values()
            if (bool(view.closed_reason), view.mode, view.delivery)
            == (stand.closed, stand.mode, stand.delivery)
        ]
        counted = columns.whole_cards([number])
        assert [counted[cards] for cards in range(4)] == [free.count(cards) for cards in range(4)]


def test_links_that_become_known_later_count() -> None:
    linked = a_shaped_node("hgx-a100", free=0b11)
    columns, fresh, both = Columns(), Columns(), np.array([0b11], dtype=np.uint64)

    columns.put(replace(linked, topology=None))
    rows = columns.rows([linked.name])
    before = columns.shapes.scores(columns.cells(rows).of_node("shape"), both, TopologyPreference.NVLINK)
    columns.put(linked)
    fresh.put(linked)

    after, expected = (
        kept.shapes.scores(kept.cells(rows).of_node("shape"), both, TopologyPreference.NVLINK)
        for kept in (columns, fresh)
    )
    assert after == expected > before


def test_supply_is_what_is_free_of_each_model_and_what_is_used_beside_known_hosts() -> None:
    columns = Columns()
    host = HostCapacity(64_000, 40_000, 1 << 38, 1 << 38)
    columns.put(a_node(a_card(0), a_card(1, 500), a_card(2, closed_reason="lost"), name="used", host=host))
    columns.put(a_node(a_card(0, model="T4"), name="unknown host"))
    columns.put(a_node(name="without GPUs", host=host))
    columns.put(a_node(a_card(0), name="gone", host=host))
    columns.remove("gone")

    supply = columns.supply()

    assert {kind[0]: gpus for kind, gpus in supply.free.items()} == {"A100-SXM4-40GB": 1.5, "T4": 1.0}
    assert (supply.gpus, supply.used_gpus) == (2, 0.5)
    assert (supply.cores, supply.used_cores) == (64, 24)
