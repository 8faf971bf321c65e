"""Layouts of MIG instances: enumerated, grown and packed exactly."""

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.catalog.loader import load_catalog
from gpuloom.model.mig import MigPlacement, MigProfile
from gpuloom.placement.mig_geometry import (
    Geometry,
    Layout,
    layout_problem,
    legal_layouts,
    maximal_layouts,
    pack,
    slices_of,
)

CATALOG = load_catalog()
MODELS = [gpu for gpu in CATALOG.gpus if gpu.mig_profiles]
GEOMETRIES = [Geometry(gpu.mig_slices, gpu.mig_profiles) for gpu in MODELS]


def geometry_of(model: str, *, without: str = "") -> Geometry:
    gpu = CATALOG.gpu(model)
    profiles = tuple(profile for profile in gpu.mig_profiles if not without or without not in profile.name)
    return Geometry(gpu.mig_slices, profiles)


def classic(geometry: Geometry) -> Geometry:
    """Without media variants and without the 1g of double memory."""
    profiles = tuple(
        profile
        for profile in geometry.profiles
        if "+" not in profile.name
        and "-" not in profile.name
        and not (profile.compute_slices == 1 and profile.memory_slices > geometry.memory_slices // 7)
    )
    return Geometry(geometry.memory_slices, profiles)


def test_the_a100_family_has_nineteen_maximal_classic_layouts() -> None:
    for model in ("A100-40GB", "A100-80GB", "H100-80GB"):
        layouts = maximal_layouts(classic(geometry_of(model)))

        assert len(layouts) == 19
        assert len({tuple(sorted(place.profile for place in layout)) for layout in layouts}) == 14


def test_counts_of_layouts_with_and_without_special_profiles_are_the_known_ones() -> None:
    plain = geometry_of("A100-40GB", without="+me")

    assert sum(1 for layout in legal_layouts(classic(plain)) if layout) == 297
    assert len(maximal_layouts(plain)) == 78
    assert sum(1 for layout in legal_layouts(plain) if layout) == 722
    assert len(maximal_layouts(geometry_of("A100-40GB"))) == 239
    assert len(maximal_layouts(geometry_of("A30"))) == 21


def test_a_small_slice_goes_where_it_blocks_no_large_one() -> None:
    geometry = geometry_of("A100-80GB")
    layout = Layout(geometry, (MigPlacement(0, "3g.40gb"),))
    small = geometry.profile("1g.10gb")
    assert small is not None

    assert layout.best_place(small) == MigPlacement(6, "1g.10gb")


def test_a_layout_that_no_gpu_can_have_is_refused_with_the_reason() -> None:
    geometry = geometry_of("A100-40GB")

    assert "no profile 9g.90gb" in layout_problem(geometry, [MigPlacement(0, "9g.90gb")])
    assert "only at 0, 4" in layout_problem(geometry, [MigPlacement(2, "3g.20gb")])
    assert "overlaps" in layout_problem(geometry, [MigPlacement(0, "3g.20gb"), MigPlacement(2, "2g.10gb")])
    media = [MigPlacement(0, "1g.5gb+me"), MigPlacement(1, "1g.5gb+me")]
    assert "can hold 1" in layout_problem(geometry, media)


@pytest.mark.parametrize("slices", [0, 13])
def test_a_table_that_no_gpu_has_is_refused(slices: int) -> None:
    with pytest.raises(ValueError, match="1 to 12"):
        Geometry(slices, ())


@st.composite
def tables(draw: st.DrawFn) -> Geometry:
    """Any table that a driver may report, also of GPUs that nobody has built yet."""
    slices = draw(st.integers(1, 8))
    profiles = []
    for number in range(draw(st.integers(1, 4))):
        size = draw(st.integers(1, slices))
        starts = draw(st.sets(st.integers(0, slices - size), min_size=1, max_size=4))
        most = draw(st.integers(1, 4))
        profiles.append(MigProfile(f"p{number}.{size}", size, size, size * 1024, tuple(sorted(starts)), most))
    return Geometry(slices, tuple(profiles))


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    layout = Layout(draw(st.one_of(st.sampled_from(GEOMETRIES), tables())))
    for _ in range(draw(st.integers(0, 4))):
        free = [place for profile in layout.geometry.profiles for place in layout.places(profile)]
        if not free:
            break
        layout = layout.with_instance(draw(st.sampled_from(free)))
    return layout


@given(layouts(), st.data())
def test_a_place_is_found_exactly_if_there_is_one_and_touches_nothing_that_exists(
    layout: Layout, data: st.DataObject
) -> None:
    profile = data.draw(st.sampled_from(layout.geometry.profiles))

    place = layout.best_place(profile)

    legal = [
        MigPlacement(start, profile.name)
        for start in profile.starts
        if not layout_problem(layout.geometry, (*layout.placements, MigPlacement(start, profile.name)))
    ]
    assert (place is None) == (not legal)
    if place is not None:
        assert place in legal
        assert not layout.taken & slices_of(layout.geometry, place)


@given(layouts(), st.data())
def test_a_packing_is_legal_and_no_other_holds_more(layout: Layout, data: st.DataObject) -> None:
    names = [profile.name for profile in layout.geometry.profiles]
    demand = data.draw(st.dictionaries(st.sampled_from(names), st.integers(1, 3), max_size=3))

    packing = pack(layout, demand)

    assert not layout_problem(layout.geometry, (*layout.placements, *packing.placements))
    packed = Counter(place.profile for place in packing.placements)
    assert all(packed[name] + packing.left.get(name, 0) == count for name, count in demand.items())
    assert _slices(layout.geometry, packing.placements) == _most_slices(layout, demand)


def _slices(geometry: Geometry, placements: tuple[MigPlacement, ...]) -> int:
    return sum(slices_of(geometry, place).bit_count() for place in placements)


def _most_slices(layout: Layout, demand: dict[str, int]) -> int:
    """By trying every set of places."""
    free = [
        place
        for profile in layout.geometry.profiles
        if demand.get(profile.name)
        for place in layout.places(profile)
    ]
    best = 0
    for size in range(1, min(sum(demand.values()), layout.geometry.memory_slices) + 1):
        for chosen in combinations(free, size):
            counts = Counter(place.profile for place in chosen)
            if all(counts[name] <= demand[name] for name in counts) and not layout_problem(
                layout.geometry, (*layout.placements, *chosen)
            ):
                best = max(best, _slices(layout.geometry, chosen))
    return best
