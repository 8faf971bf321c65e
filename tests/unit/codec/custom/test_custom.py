"""Custom resources from Kubernetes JSON and back, held against the definitions in deploy/crds."""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from gpuloom.codec.custom.autoscaling import autoscaling_policy, autoscaling_policy_status_to_json
from gpuloom.codec.custom.budget import cost_budget, cost_budget_status_to_json
from gpuloom.codec.custom.claims import (
    gpu_hold,
    gpu_hold_spec_to_json,
    gpu_hold_status_to_json,
    gpu_node_claim,
    gpu_node_claim_spec_to_json,
    gpu_node_claim_status_to_json,
    gpu_reservation,
    gpu_reservation_status_to_json,
)
from gpuloom.codec.custom.inference import inference_policy, inference_policy_status_to_json
from gpuloom.codec.custom.sharing import (
    gpu_node_config,
    gpu_node_config_status_to_json,
    gpu_sharing_policy,
    gpu_sharing_policy_status_to_json,
)
from gpuloom.codec.custom.workload import gpu_workload, gpu_workload_status_to_json
from gpuloom.errors import InvalidRequestError
from gpuloom.model.objects import LabelRequirement, LabelSelector, ObjectMeta, SelectorOperator
from gpuloom.model.policies import CapacityType, CloudProvider, NodePool
from gpuloom.model.workload import (
    GpuWorkload,
    GpuWorkloadSpec,
    GpuWorkloadStatus,
    RetryPolicy,
    WorkloadPhase,
    WorkloadPriority,
)
from gpuloom.sim.kubeapi.schema import CustomSchema
from tests.contract.crds.manifests import (
    DEFAULTED,
    EXAMPLES,
    KINDS,
    Object,
    changed,
    complete,
    completes,
    documents,
    minimal,
    schema_of,
)
from tests.contract.crds.wrong import TWICE, VALUE, WRONG
from tests.effort import examples
from tests.unit.codec.custom.schemas import accepted_by, places

Codec = tuple[Callable[[object], Any], Callable[[Any], Object]]
CODECS: dict[str, Codec] = {
    "GPUWorkload": (gpu_workload, gpu_workload_status_to_json),
    "AutoscalingPolicy": (autoscaling_policy, autoscaling_policy_status_to_json),
    "AIInferenceAutoscalerPolicy": (inference_policy, inference_policy_status_to_json),
    "CostBudget": (cost_budget, cost_budget_status_to_json),
    "GPUSharingPolicy": (gpu_sharing_policy, gpu_sharing_policy_status_to_json),
    "GPUNodeConfig": (gpu_node_config, gpu_node_config_status_to_json),
    "GPUHold": (gpu_hold, gpu_hold_status_to_json),
    "GPUNodeClaim": (gpu_node_claim, gpu_node_claim_status_to_json),
    "GPUReservation": (gpu_reservation, gpu_reservation_status_to_json),
}
SPECS: dict[str, Callable[[Any], Object]] = {
    "GPUHold": gpu_hold_spec_to_json,
    "GPUNodeClaim": gpu_node_claim_spec_to_json,
}
# What the complete examples can't have beside what they have.
EXCLUDED_BY_OTHERS = {
    "GPUHold": {"spec.takenBy", "spec.target.memoryMib", "spec.target.milli"},
    "GPUWorkload": {"spec.migProfile"},
    "GPUSharingPolicy": {
        "spec.namespaceSelector.matchExpressions[].values",
        "spec.namespaceSelector.matchExpressions[].values[]",
    },
}
MAX_ERROR_LENGTH = 600
BY_KIND = pytest.mark.parametrize("kind", KINDS)
THOROUGHLY = settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def test_every_kind_has_a_codec() -> None:
    assert tuple(sorted(CODECS)) == KINDS


def test_the_printed_workload_reads_as_it_says() -> None:
    (manifest,) = documents(EXAMPLES / "gpuworkload.yaml")

    assert gpu_workload(manifest) == GpuWorkload(
        meta=ObjectMeta("my-inference-workload"),
        spec=GpuWorkloadSpec("llama2", 2, WorkloadPriority.HIGH, "leastLoaded", RetryPolicy(3, 30)),
        status=GpuWorkloadStatus(
            WorkloadPhase.SCHEDULED,
            "gpu-node-01",
            "my-inference-job-abc123",
            "Successfully scheduled on node...",
        ),
    )


def test_the_printed_node_pools_read_as_they_say() -> None:
    (manifest,) = documents(EXAMPLES / "phase3" / "autoscaling-policy.yaml")

    spec = autoscaling_policy(manifest).spec

    assert (spec.provider, spec.scale_up_cooldown_s, spec.spot_share) == (CloudProvider.AWS, 180, 0.6)
    assert spec.pools == (
        NodePool(
            name="spot-pool",
            max_size=50,
            gpu_type="nvidia-tesla-v100",
            instance_types=("p3.2xlarge", "p3.8xlarge"),
            capacity_type=CapacityType.SPOT,
            spot_share=1.0,
            priority=10,
            labels={"gpu-autoscaler.io/capacity-type": "spot"},
            zones=("us-west-2a", "us-west-2b", "us-west-2c"),
        ),
    )


def test_money_and_times_are_exact() -> None:
    budget = cost_budget(complete("CostBudget"))
    reservations = [gpu_reservation(one) for one in completes("GPUReservation")]
    cents = cost_budget(changed(complete("CostBudget"), "spec.monthlyLimit", 0.1))

    assert budget.spec.limit_nano_usd == 12_500_500_000_000
    assert cents.spec.limit_nano_usd == 100_000_000
    assert reservations[0].spec.start == datetime(2030, 5, 1, 8, tzinfo=UTC)
    assert reservations[1].spec.ttl_s == 9000


def test_a_selector_selects_as_kubernetes_does() -> None:
    selector = LabelSelector(
        {"app": "web"},
        (
            LabelRequirement("tier", SelectorOperator.NOT_IN, ("batch",)),
            LabelRequirement("team", SelectorOperator.IN, ("a", "b")),
            LabelRequirement("old", SelectorOperator.DOES_NOT_EXIST),
            LabelRequirement("zone", SelectorOperator.EXISTS),
        ),
    )
    fitting = {"app": "web", "team": "a", "zone": ""}

    assert selector.matches(fitting)
    assert LabelSelector().matches({})
    for label, value in (("app", "db"), ("tier", "batch"), ("team", "c"), ("old", "1")):
        assert not selector.matches({**fitting, label: value})
    for label in fitting:
        assert not selector.matches({key: value for key, value in fitting.items() if key != label})


@BY_KIND
def test_absent_fields_read_as_the_defaults_of_the_definition(kind: str) -> None:
    read, _ = CODECS[kind]
    given = minimal(kind)

    assert read(given) == read({**given, "spec": DEFAULTED[kind]})


@BY_KIND
def test_what_the_server_refuses_in_one_field_is_refused_with_its_path(kind: str) -> None:
    read, _ = CODECS[kind]
    for wrong in WRONG[kind]:
        if wrong.by != VALUE or wrong.reason == TWICE:
            continue
        with pytest.raises(InvalidRequestError, match=re.escape(wrong.named)):
            read(changed(complete(kind), wrong.path, wrong.value))


@BY_KIND
def test_the_bounds_are_those_of_the_definition(kind: str) -> None:
    read, _ = CODECS[kind]
    for manifest, path, schema in spec_fields(kind):
        for value in inside(schema):
            read(changed(manifest, path, value))
        for value in outside(schema):
            with pytest.raises(InvalidRequestError, match=re.escape(path)):
                read(changed(manifest, path, value))


@BY_KIND
def test_the_complete_examples_have_every_field(kind: str) -> None:
    covered = {re.sub(r"\[\d+\]", "[]", path) for _, path, _ in spec_fields(kind)}

    missing = {place for place, _ in places(spec_schema(kind), "spec")} - covered

    assert missing == EXCLUDED_BY_OTHERS.get(kind, set())


@BY_KIND
@THOROUGHLY
@given(data=st.data())
def test_all_that_the_schema_accepts_is_read_and_its_status_written_back(
    kind: str, data: st.DataObject
) -> None:
    read, status_to_json = CODECS[kind]
    schema = CustomSchema.of(schema_of(kind))
    obj = minimal(kind) | data.draw(
        st.fixed_dictionaries(
            {part: accepted_by(schema.tree["properties"][part]) for part in ("spec", "status")}
        )
    )
    assume(kind != "GPUHold" or not schema.problems(obj))

    model = read(obj)
    again, unknown = schema.complete({**obj, "status": status_to_json(model.status)})

    assert unknown == []
    assert not [problem for problem in schema.problems(again) if problem.field.startswith("status")]
    assert read(again).status == model.status
    if kind in SPECS:
        written, unknown = schema.complete({**obj, "spec": SPECS[kind](model.spec)})
        assert (unknown, schema.problems(written)) == ([], [])
        assert read(written) == model


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["9" * 5000, 10**400, -(10**4000)]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@BY_KIND
@THOROUGHLY
@given(data=st.data())
def test_whatever_stands_in_a_field_only_our_own_short_error_comes(kind: str, data: st.DataObject) -> None:
    read, _ = CODECS[kind]
    manifest = complete(kind)
    path = data.draw(st.sampled_from(["spec", "status", "metadata", *sorted(leaves(manifest))]))
    hostile = changed(manifest, path, data.draw(JSON))

    told = ""
    try:
        read(hostile)
    except InvalidRequestError as error:
        told = str(error)

    assert len(told) <= MAX_ERROR_LENGTH


@pytest.mark.parametrize(
    "hostile", [None, [], "x", 7, {}, {"spec": {}}, {"spec": {}, "metadata": {"name": 7}}]
)
@BY_KIND
def test_what_is_no_object_is_refused(kind: str, hostile: object) -> None:
    with pytest.raises(InvalidRequestError):
        CODECS[kind][0](hostile)


def spec_schema(kind: str) -> Object:
    spec: Object = schema_of(kind)["properties"]["spec"]
    return spec


def spec_fields(kind: str) -> Iterator[tuple[Object, str, Object]]:
    """Every field of the complete examples: the example, the path, the field's schema."""
    for manifest in completes(kind):
        for path in leaves(manifest):
            node: Object = schema_of(kind)
            for step in re.findall(r"[^.\[\]]+|\[\d+\]", path):
                known = node.get("properties") or {}
                node = node.get("items", {}) if step.startswith("[") else known.get(step, {})
            if path.startswith("spec.") and node:
                yield manifest, path, node


def leaves(manifest: Object) -> list[str]:
    """The paths of all values, of objects and lists too."""
    found: list[str] = []

    def walk(value: Any, path: str) -> None:
        found.append(path)
        if isinstance(value, dict):
            for key, one in value.items():
                # A key with a dot can't be told from two steps.
                if "." not in key:
                    walk(one, f"{path}.{key}")
        elif isinstance(value, list):
            for index, one in enumerate(value):
                walk(one, f"{path}[{index}]")

    walk(manifest["spec"], "spec")
    return found


def inside(schema: Object) -> list[Any]:
    """Values at the edge of what is right."""
    edges = [schema[key] for key in ("minimum", "maximum") if key in schema]
    if schema.get("exclusiveMinimum"):
        edges.remove(schema["minimum"])
    if schema.get("type") == "string" and "maxLength" in schema and "pattern" not in schema:
        edges.append("x" * schema["maxLength"])
    return [*edges, *schema.get("enum", ())]


def outside(schema: Object) -> list[Any]:
    """Values just beyond it, and of other types."""
    kind = schema.get("type")
    others: dict[str, Any] = {
        "string": 7,
        "integer": "7",
        "number": "7",
        "boolean": 1,
        "array": {},
        "object": [],
    }
    beyond: list[Any] = [others[kind]] if kind else []
    if kind == "number":
        beyond.append(10**400)  # which no float can hold
    if "minimum" in schema:
        beyond.append(schema["minimum"] - (0 if schema.get("exclusiveMinimum") else 1))
    if "maximum" in schema:
        beyond.append(schema["maximum"] * 2 + 1)
    if "maxLength" in schema:
        beyond.append("x" * (schema["maxLength"] + 1))
    if "minLength" in schema:
        beyond.append("x" * (schema["minLength"] - 1))
    if "maxItems" in schema:
        beyond.append(["x"] * (schema["maxItems"] + 1))
    return [*beyond, *(["another"] if "enum" in schema else [])]
