"""The wire: reviews that are none, patches that do what they say, and a guard that lets nobody else write."""

import base64
import copy
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.errors import InvalidRequestError
from gpuloom.placement.strategies import WITHOUT_DEVICES
from gpuloom.sim.kubeapi.objects.patches import json_patch as applied
from services.webhook.admission import Admission, AdmissionSettings
from services.webhook.core.guard import refusal
from services.webhook.core.pods import Advice, PodPolicy, Surroundings
from services.webhook.core.reviews import Answer, Review, answer_body, json_patch, read_review
from services.webhook.core.validation import problem_of
from services.webhook.ports import NoAdvisor

ROOT = Path(__file__).parents[3]
WORKLOAD = {"modelName": "llama2", "gpuCount": 1}
POLICY = {"provider": "simulated"}
A_POOL = {"name": "p", "minSize": 0, "maxSize": 1}

JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.sampled_from(["a", "b/c", "d~e", "f"]), JSON, max_size=4)


@given(OBJECTS, OBJECTS)
def test_a_patch_makes_the_one_object_of_the_other(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert applied(copy.deepcopy(before), json_patch(before, after)) == after


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"request":1}', b'{"request":{}}', b"\xff\xfe"])
def test_a_body_that_is_no_review_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        read_review(body)


def test_an_answer_carries_its_patch_as_the_api_server_wants_it() -> None:
    patch = [{"op": "add", "path": "/x", "value": 1}]

    response = orjson.loads(answer_body("u-1", Answer(patch, ("be warned",))))["response"]

    assert response["uid"] == "u-1"
    assert response["allowed"]
    assert orjson.loads(base64.b64decode(response["patch"])) == patch
    assert response["warnings"] == ["be warned"]


def a_write(user: str, before: dict[str, str], after: dict[str, str]) -> Review:
    def pod(annotations: dict[str, str]) -> dict[str, Any]:
        return {"metadata": {"annotations": annotations}}

    return Review("u", "Pod", "UPDATE", "team", user, pod(after), pod(before))


def test_nobody_but_the_extender_writes_an_allocation() -> None:
    writers = frozenset({"extender"})
    taken = {"gpuloom.dev/allocation": "{}"}

    assert refusal(a_write("extender", {}, taken), writers) is None
    assert refusal(a_write("eve", taken, {**taken, "other": "x"}), writers) is None
    for before, after in (({}, taken), (taken, {}), (taken, {"gpuloom.dev/allocation": "{1}"})):
        assert "only GPULoom" in str(refusal(a_write("eve", before, after), writers))


@pytest.mark.parametrize(
    ("kind", "operation", "annotation", "refused"),
    [
        ("Pod", "CREATE", "gpuloom.dev/reservation", False),
        ("Pod", "UPDATE", "gpuloom.dev/reservation", True),
        ("Binding", "CREATE", "gpuloom.dev/reservation", True),
        ("Binding", "CREATE", "gpuloom.dev/allocation", True),
        ("Binding", "CREATE", "example.com/mine", False),
    ],
)
async def test_a_binding_is_guarded_like_the_pod_that_it_is_copied_to(
    kind: str, operation: str, annotation: str, refused: bool
) -> None:
    obj = {"metadata": {"annotations": {annotation: "x"}}}
    old = {"metadata": {"name": "p"}} if operation == "UPDATE" else {}

    answer = await an_admission().guard(Review("u", kind, operation, "team", "eve", obj, old))

    assert (answer.denied is not None) == refused


class EmptyCluster:
    def surroundings(self, pod: Any, namespace: str) -> Surroundings:
        return Surroundings({"gpu-autoscaler.io/sharing-enabled": "true"})


def an_admission(rejects: bool = False) -> Admission:
    strategies = frozenset({"leastLoaded"})
    settings = AdmissionSettings(PodPolicy(), 0.03, rejects, frozenset(), strategies)
    return Admission(EmptyCluster(), NoAdvisor(), settings)


@given(st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), JSON, max_size=3))
async def test_no_pod_however_odd_is_stopped_by_the_mutation(pod: dict[str, Any]) -> None:
    answer = await an_admission().mutate(Review("u", "Pod", "CREATE", "team", "me", pod, {}))

    assert answer.denied is None


@pytest.mark.parametrize("rejects", [False, True])
async def test_a_wrong_request_is_refused_only_if_that_is_switched_on(rejects: bool) -> None:
    container = {"name": "c", "resources": {"limits": {"gpuloom.dev/gpu-milli": "1500"}}}
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [container]}}

    answer = await an_admission(rejects).validate(Review("u", "Pod", "CREATE", "team", "me", pod, {}))

    told = answer.denied if rejects else answer.warnings[0]
    assert (answer.denied is not None) == rejects
    assert "1500" in str(told)


@pytest.mark.parametrize(
    ("kind", "spec", "told"),
    [
        ("GPUWorkload", WORKLOAD | {"schedulingStrategy": "best"}, "there is no strategy best"),
        ("GPUWorkload", WORKLOAD | {"migProfile": "9g.1gb"}, "MIG profile 9g.1gb"),
        ("GPUWorkload", WORKLOAD | {"gpuCount": 0}, "gpuCount"),
        ("GPUWorkload", WORKLOAD, None),
        ("GPUNodeConfig", {"nodeName": "n", "migProfiles": ["1g.5gb", "9g.1gb"]}, "MIG profile 9g.1gb"),
        ("GPUSharingPolicy", {"strategy": "half"}, "strategy"),
        ("AutoscalingPolicy", POLICY | {"nodePools": [A_POOL | {"gpuType": "voodoo2"}]}, "gpuType voodoo2"),
        ("AIInferenceAutoscalerPolicy", {"targetRef": {}}, "targetRef"),
        ("CostBudget", {"monthlyLimit": "a lot"}, "monthlyLimit"),
        ("GPUHold", {"target": {}}, "target"),
        ("GPUNodeClaim", {}, "spec"),
        ("GPUReservation", {}, "request"),
        ("Unheard", {"anything": 1}, None),
    ],
)
async def test_custom_resources_are_held_to_what_is_installed(
    kind: str, spec: dict[str, Any], told: str | None
) -> None:
    obj = {"metadata": {"name": "one"}, "spec": spec}
    stored = {"metadata": {"name": "one", "finalizers": ["x"]}, "spec": spec}

    created = await an_admission().validate(Review("u", kind, "CREATE", "", "me", obj, {}))
    released = await an_admission().validate(Review("u", kind, "UPDATE", "", "me", obj, stored))

    assert created.denied is None if told is None else told in str(created.denied)
    assert released.denied is None, "what is stored already must stay writable"


@pytest.mark.parametrize("path", sorted((ROOT / "examples").rglob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_passes(path: Path) -> None:
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        if document:
            assert problem_of(document["kind"], document, frozenset(WITHOUT_DEVICES)) is None


@pytest.mark.parametrize(
    ("kind", "spec", "completed"),
    [
        ("GPUNodeConfig", {}, {"nodeName": "one"}),
        ("GPUNodeConfig", {"nodeName": "other"}, {"nodeName": "other"}),
        ("GPUWorkload", {"schedulingStrategy": "least-loaded"}, {"schedulingStrategy": "leastLoaded"}),
        ("GPUWorkload", {"schedulingStrategy": "mine"}, {"schedulingStrategy": "mine"}),
        ("GPUWorkload", {"migProfile": "1G.5GB"}, {"migProfile": "1g.5gb"}),
        (
            "GPUSharingPolicy",
            {"migConfig": {"profile": "1g.5gb.me"}},
            {"migConfig": {"profile": "1g.5gb+me"}},
        ),
        ("CostBudget", {"monthlyLimit": 1}, {"monthlyLimit": 1}),
    ],
)
async def test_what_a_schema_can_not_fill_in_is_filled_in_once(
    kind: str, spec: dict[str, Any], completed: dict[str, Any]
) -> None:
    obj = {"metadata": {"name": "one"}, "spec": spec}

    answer = await an_admission().default(Review("u", kind, "CREATE", "", "me", obj, {}))
    stored = applied(copy.deepcopy(obj), list(answer.patch))
    again = await an_admission().default(Review("u", kind, "CREATE", "", "me", stored, {}))

    assert stored["spec"] == completed
    assert not again.patch


class SlowAdvisor:
    """Takes its time, as long as it may."""

    def __init__(self) -> None:
        self.allowed_s: list[float] = []

    async def advice(self, pod: Any, namespace: str, *, timeout_s: float) -> Advice | None:
        self.allowed_s.append(timeout_s)
        return None


@pytest.mark.parametrize(("waited_s", "left_s"), [(0.0, 0.03), (0.02, 0.01), (0.5, -0.47)])
async def test_advice_is_waited_for_no_longer_than_what_is_left_of_the_deadline_and_the_pod_gets_in(
    waited_s: float, left_s: float
) -> None:
    advisor = SlowAdvisor()
    settings = AdmissionSettings(PodPolicy(), 0.03, False, frozenset(), frozenset())
    container = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [container]}}

    answer = await Admission(EmptyCluster(), advisor, settings).mutate(
        Review("u", "Pod", "CREATE", "team", "me", pod, {}, waited_s=waited_s)
    )

    assert advisor.allowed_s == pytest.approx([left_s])
    assert answer.denied is None
