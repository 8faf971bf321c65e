"""What other autoscalers are told: values, refusals, and never a zero for what is not known."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.errors import InvalidRequestError, NotFoundError, NotReadyError
from gpuloom.keda import externalscaler_pb2 as pb
from gpuloom.kube.parse import quantity_milli
from gpuloom.model.policies import ScaleTarget
from services.autoscaler.inference.adapters.catalogue import CatalogueReader
from services.autoscaler.inference.adapters.keda import POLL_S, KedaScaler, Trigger
from services.autoscaler.inference.adapters.targets import Targets
from services.autoscaler.inference.core import catalogue
from services.autoscaler.inference.core.catalogue import CATALOGUE, Value
from services.autoscaler.inference.core.measures import Answer, Question
from services.autoscaler.inference.core.queries import MOST_NAMES
from services.autoscaler.inference.core.selectors import matches
from tests.unit.autoscaler.inference.test_loop import NAMESPACE, TARGET, World, a_world

EXAMPLES = Path(__file__).parents[4] / "examples" / "inference"
NOW = datetime(2026, 11, 18, tzinfo=UTC)
NO_CONTEXT = cast("Any", None)


class Told:
    """`by_pod` for questions by pod, `value` for others; None: not known."""

    def __init__(self, by_pod: Mapping[str, float], value: float | None = None) -> None:
        self.by_pod = by_pod
        self.value = value

    async def ask(self, questions: Mapping[str, Question]) -> Mapping[str, Answer]:
        return {
            name: Answer(pods=self.by_pod) if one.by_pod else Answer(self.value)
            for name, one in questions.items()
        }

    async def past(self, *_: object) -> list[float]:
        return []


@asynccontextmanager
async def a_reader(told: Told) -> AsyncIterator[tuple[CatalogueReader, World]]:
    async with a_world(replicas=2) as world:
        yield CatalogueReader(world.client, Targets(world.client), told, world.clock), world


def a_trigger(**changes: str) -> dict[str, str]:
    return {"deployment": TARGET, "metric": "requests_in_flight", "target": "12", **changes}


def a_reference(**changes: str) -> pb.ScaledObjectRef:
    return pb.ScaledObjectRef(name="it", namespace=NAMESPACE, scalerMetadata=a_trigger(**changes))


async def test_a_target_has_the_value_of_its_ready_pods_and_a_missing_one_counts_as_the_others() -> None:
    async with a_reader(Told({f"{TARGET}-0": 8.0})) as (reader, _):
        total = await reader.of_target(NAMESPACE, ScaleTarget("Deployment", TARGET), "requests_waiting")
        pods = await reader.of_pods(NAMESPACE, "*", f"app={TARGET}", "requests_waiting")

    assert total == 16.0
    assert pods == [Value("Pod", "v1", f"{TARGET}-0", 8.0)]


class Matching(Told):
    """Answers for those pods that a query selects."""

    async def ask(self, questions: Mapping[str, Question]) -> Mapping[str, Answer]:
        return {name: Answer(pods=self._selected(one.query)) for name, one in questions.items()}

    def _selected(self, query: str) -> dict[str, float]:
        patterns = [one.replace("\\\\", "\\") for one in re.findall(r'[{,]pod=~"([^"]*)"', query)]
        return {
            pod: value
            for pod, value in self.by_pod.items()
            if any(re.fullmatch(one, pod) for one in patterns)
        }


async def test_more_pods_than_one_query_names_are_asked_for_in_several() -> None:
    names = [f"{TARGET}-{number}" for number in range(MOST_NAMES + 1)]
    async with a_reader(Matching(dict.fromkeys(names, 1.0))) as (reader, world):
        for name in names[2:]:
            await world.add_pod(name)
        pods = await reader.of_pods(NAMESPACE, "*", f"app={TARGET}", "requests_waiting")

    assert len(pods) == MOST_NAMES + 1


async def test_what_is_not_known_is_an_error_and_no_zero() -> None:
    async with a_reader(Told({})) as (reader, world):
        keda = KedaScaler(reader, Told({}), world.clock)
        with pytest.raises(NotFoundError):
            await reader.of_pods(NAMESPACE, "*", f"app={TARGET}", "requests_waiting")
        with pytest.raises(NotFoundError):
            await reader.of_target(NAMESPACE, ScaleTarget("Deployment", TARGET), "nonsense")
        with pytest.raises(NotReadyError):
            await keda.GetMetrics(pb.GetMetricsRequest(scaledObjectRef=a_reference()), NO_CONTEXT)
        with pytest.raises(NotReadyError):
            await keda.IsActive(a_reference(activationQuery="gateway"), NO_CONTEXT)


async def test_keda_is_told_name_target_value_and_activity() -> None:
    told = Told(dict.fromkeys((f"{TARGET}-0", f"{TARGET}-1"), 4.5), value=0.0)
    async with a_reader(told) as (reader, world):
        keda = KedaScaler(reader, told, world.clock)
        (spec,) = (await keda.GetMetricSpec(a_reference(target="2.5"), NO_CONTEXT)).metricSpecs
        (value,) = (
            await keda.GetMetrics(pb.GetMetricsRequest(scaledObjectRef=a_reference()), NO_CONTEXT)
        ).metricValues
        busy = (await keda.IsActive(a_reference(), NO_CONTEXT)).result
        await world.set_replicas(0)
        told.by_pod = {}
        (of_none,) = (
            await keda.GetMetrics(pb.GetMetricsRequest(scaledObjectRef=a_reference()), NO_CONTEXT)
        ).metricValues
        asleep = (await keda.IsActive(a_reference(activationQuery="gateway"), NO_CONTEXT)).result
        told.value = 3.0
        woken = (await keda.IsActive(a_reference(activationQuery="gateway"), NO_CONTEXT)).result

    assert (spec.metricName, spec.targetSize, spec.targetSizeFloat) == ("requests_in_flight", 3, 2.5)
    assert (value.metricName, value.metricValue, value.metricValueFloat) == ("requests_in_flight", 9, 9.0)
    assert (busy, asleep, woken) == (True, False, True)
    assert of_none.metricValueFloat == 0, "KEDA asks for activity only after a value, so F20 needs one"


async def test_a_stream_to_keda_outlives_a_signal_that_is_not_known() -> None:
    told = Told({}, value=3.0)
    async with a_reader(told) as (reader, world):
        stream = KedaScaler(reader, told, world.clock).StreamIsActive(
            a_reference(activationQuery="gateway"), NO_CONTEXT
        )
        await world.set_replicas(0)
        first = (await anext(stream)).result
        told.value = None
        coming = asyncio.ensure_future(anext(stream))
        for _ in range(3):
            await world.clock.advance(POLL_S)
        silent = not coming.done()
        told.value = 0.0
        while not coming.done():
            await world.clock.advance(POLL_S)
        last = coming.result().result

    assert (first, silent, last) == (True, True, False)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"deployment": ""}, "deployment and statefulset"),
        ({"statefulset": "also"}, "deployment and statefulset"),
        ({"metric": "latency"}, "metric must be one of"),
        ({"target": "many"}, "target must be a number"),
        ({"target": "0"}, "target must be a number"),
        ({"target": "inf"}, "target must be a number"),
    ],
)
def test_a_wrong_trigger_is_refused_with_the_key_that_is_wrong(wrong: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        Trigger.read(a_trigger(**wrong))


@given(st.floats(0, 1e9))
def test_quantities_are_what_kubernetes_reads_to_a_thousandth(amount: float) -> None:
    assert quantity_milli(catalogue.quantity(amount)) == round(amount * 1000)


def test_both_versions_of_the_custom_api_name_the_metric_their_own_way() -> None:
    value = [Value("Pod", "v1", "a", 1.5)]

    (old,) = catalogue.custom_values("v1beta1", "work", "requests_waiting", value, NOW)["items"]
    (new,) = catalogue.custom_values("v1beta2", "work", "requests_waiting", value, NOW)["items"]

    assert (old["metricName"], new["metric"]) == ("requests_waiting", {"name": "requests_waiting"})
    assert old["value"] == new["value"] == "1500m"


def test_the_examples_for_hpas_and_keda_ask_for_metrics_that_there_are() -> None:
    hpa = yaml.safe_load((EXAMPLES / "hpa.yaml").read_text())
    keda = list(yaml.safe_load_all((EXAMPLES / "keda.yaml").read_text()))[1]

    asked = {one[one["type"].lower()]["metric"]["name"] for one in hpa["spec"]["metrics"]}
    triggers = [Trigger.read(one["metadata"]) for one in keda["spec"]["triggers"]]

    assert asked <= CATALOGUE.keys()
    assert replace(triggers[0], activation_query="") == Trigger(
        ScaleTarget("Deployment", TARGET), "requests_in_flight", 12.0
    )


@pytest.mark.parametrize(
    ("selector", "holds"),
    [
        ("app=llm", True),
        ("app==llm,tier in (gpu, cpu)", True),
        ("app=llm,tier notin (gpu)", False),
        ("app!=llm", False),
        ("tier,!canary", True),
        ("!tier", False),
        ("absent", False),
        ("", False),
    ],
)
def test_selectors_in_their_text_form(selector: str, holds: bool) -> None:
    assert matches(selector, {"app": "llm", "tier": "gpu"}) is holds
