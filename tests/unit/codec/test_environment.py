from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.codec.environment import sees_only_its_allocation
from gpuloom.codec.pod import pod_request
from gpuloom.errors import InvalidRequestError

FROM_ALLOCATION = {
    "name": "NVIDIA_VISIBLE_DEVICES",
    "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['gpuloom.dev/visible-devices']"}},
}
NOTHING = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
ALL = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}


def a_container(name: str, *env: Any) -> dict[str, Any]:
    return {"name": name, "env": [{"name": "PATH", "value": "/bin"}, *env]}


def a_pod(*containers: Any, **spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": list(containers), **spec}}


def test_a_pod_whose_every_container_says_what_it_sees_sees_only_its_allocation() -> None:
    pod = a_pod(
        a_container("main", FROM_ALLOCATION),
        a_container("logs", NOTHING),
        initContainers=[a_container("setup", {"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"})],
    )

    assert sees_only_its_allocation(pod, "main")


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(a_pod(a_container("main")), id="the image decides"),
        pytest.param(a_pod(a_container("main", ALL)), id="all of them"),
        pytest.param(a_pod(a_container("main", FROM_ALLOCATION, ALL)), id="the last word counts"),
        pytest.param(a_pod(a_container("main", FROM_ALLOCATION), a_container("logs")), id="a neighbour"),
        pytest.param(
            a_pod(a_container("main", FROM_ALLOCATION), initContainers=[a_container("setup", ALL)]),
            id="one that ran before",
        ),
        pytest.param(
            a_pod(a_container("main", FROM_ALLOCATION), ephemeralContainers=[a_container("debug")]),
            id="one that came later",
        ),
        pytest.param(a_pod(a_container("main", NOTHING)), id="the asking one sees nothing"),
    ],
)
def test_a_pod_that_could_see_other_gpus_does_not(pod: dict[str, Any]) -> None:
    assert not sees_only_its_allocation(pod, "main")


def test_a_request_says_so_for_pods_with_a_runtime_class() -> None:
    main = a_container("main", FROM_ALLOCATION) | {"resources": {"limits": {"gpuloom.dev/gpu-milli": "500"}}}

    exact = pod_request(a_pod(main, runtimeClassName="nvidia"))
    plain = pod_request(a_pod(main))

    assert exact is not None
    assert exact.sees_only_its_allocation
    assert plain is not None
    assert not plain.sees_only_its_allocation


_JSON = st.recursive(
    st.none() | st.booleans() | st.text(max_size=5) | st.just("NVIDIA_VISIBLE_DEVICES"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "env", "value", "valueFrom", "fieldRef", "fieldPath", "containers"]),
            inner,
        )
    ),
    max_leaves=12,
)


@given(_JSON)
def test_whatever_a_spec_holds_it_is_judged_or_refused(spec: Any) -> None:
    try:
        judged = sees_only_its_allocation({"spec": spec}, "main")
    except InvalidRequestError:
        return

    assert judged in (True, False)
