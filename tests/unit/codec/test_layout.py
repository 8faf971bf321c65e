"""Layouts and changes of them, over the wire."""

from hypothesis import given
from hypothesis import strategies as st

from gpuloom.codec.layout import (
    change_from_proto,
    change_to_proto,
    layouts_from_proto,
    layouts_to_proto,
    request_from_proto,
    request_to_proto,
)
from gpuloom.errors import InvalidRequestError
from gpuloom.model.gpu import SharingMode
from gpuloom.model.layout import (
    ChangeState,
    GpuLayout,
    LaidInstance,
    LayoutChange,
    LayoutRequest,
    NodeLayouts,
    Sharing,
)
from gpuloom.model.mig import MigPlacement, MigProfile
from gpuloom.v1 import node_agent_pb2 as pb
from tests.strategies import hostile

PLACES = st.builds(MigPlacement, st.integers(0, 7), st.sampled_from(("1g.5gb", "3g.20gb+me")))
SOME_PLACES = st.lists(PLACES, max_size=4).map(tuple)
SHARINGS = st.builds(
    Sharing, st.sampled_from(SharingMode), st.integers(0, 100), st.integers(0, 99), st.integers(0, 3)
)
REQUESTS = st.builds(
    LayoutRequest,
    st.just("change-1"),
    st.just("GPU-a"),
    st.none() | st.booleans(),
    SOME_PLACES,
    SOME_PLACES,
    st.none() | SHARINGS,
)
LAYOUTS = st.builds(
    GpuLayout,
    gpu_uuid=st.just("GPU-a"),
    mig_capable=st.booleans(),
    mig_enabled=st.booleans(),
    memory_slices=st.integers(0, 12),
    profiles=st.lists(
        st.builds(
            MigProfile,
            st.just("1g.5gb"),
            st.just(1),
            st.just(1),
            st.integers(1, 9),
            st.just((0, 1)),
            st.just(7),
        ),
        max_size=2,
    ).map(tuple),
    instances=st.lists(st.builds(LaidInstance, PLACES, st.just("MIG-a"), st.text("ab")), max_size=3).map(
        tuple
    ),
    sharing=SHARINGS,
    problem=st.text("ab", max_size=5),
)


@given(REQUESTS, st.sampled_from(ChangeState), st.lists(LAYOUTS, max_size=3).map(tuple))
def test_requests_changes_and_layouts_survive_the_wire(
    request: LayoutRequest, state: ChangeState, layouts: tuple[GpuLayout, ...]
) -> None:
    change = LayoutChange(
        LayoutRequest(request.id, request.gpu_uuid, request.mig_enabled, request.destroy, request.create),
        state,
    )
    node = NodeLayouts(layouts, (change,))

    assert request_from_proto(request_to_proto(request)) == request
    assert change_from_proto(change_to_proto(change)) == change
    assert layouts_from_proto(layouts_to_proto(node)) == node


@given(hostile(pb.ChangeLayoutRequest), hostile(pb.ListLayoutsResponse))
def test_whatever_comes_is_decoded_or_refused(
    request: pb.ChangeLayoutRequest, layouts: pb.ListLayoutsResponse
) -> None:
    for decoding in (lambda: request_from_proto(request), lambda: layouts_from_proto(layouts)):
        try:
            decoding()
        except InvalidRequestError:
            continue
