"""What happens around the webhooks: races, and answers that are none."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from gpuloom.runtime.clock import FakeClock
from gpuloom.sim.kubeapi import Store
from gpuloom.sim.kubeapi.admission.caller import WebhookCaller
from gpuloom.sim.kubeapi.admission.chain import AdmissionChain
from gpuloom.sim.kubeapi.admission.webhooks import VALIDATING_KEY, Webhook
from gpuloom.sim.kubeapi.endpoints.requests import Target
from gpuloom.sim.kubeapi.endpoints.verbs import Call, Verbs
from gpuloom.sim.kubeapi.objects.patches import MERGE, Patch
from gpuloom.sim.kubeapi.status import ApiError
from gpuloom.sim.kubeapi.verbs.disruption import Disruptions

from .builders import a_config_map, a_store

RULE = {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["configmaps"]}


class ScriptedCaller(WebhookCaller):
    """Answers by a function of the request."""

    def __init__(self, answer: Callable[[dict[str, Any]], Any]) -> None:
        super().__init__(FakeClock())
        self._answer = answer

    async def ask(self, webhook: Webhook, review: dict[str, Any]) -> Any:
        return self._answer(review["request"])


def review_of(request: dict[str, Any], **response: Any) -> dict[str, Any]:
    answer = {"uid": request["uid"], "allowed": True, **response}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}


def a_chain(store: Store, answer: Callable[[dict[str, Any]], Any], **settings: Any) -> AdmissionChain:
    webhook = {"name": "check", "rules": [RULE], "clientConfig": {"url": "https://x"}, **settings}
    store.create(VALIDATING_KEY, {"metadata": {"name": "check"}, "webhooks": [webhook]})
    clock = FakeClock()
    return AdmissionChain(store, Verbs(store, Disruptions(store), clock), ScriptedCaller(answer))


def a_patch(store: Store, **data: str) -> Call:
    target = Target(store.registry.get("configmaps"), "v1", "default", "c")
    return Call("PATCH", target, {}, MERGE, orjson.dumps({"data": data}))


async def test_a_write_that_was_overtaken_is_checked_again_as_it_will_be_stored() -> None:
    store = a_store()
    store.create("configmaps", a_config_map("c", a="1"))
    seen = []

    def answer(request: dict[str, Any]) -> Any:
        seen.append(request["object"]["data"])
        if len(seen) == 1:
            store.patch("configmaps", "c", Patch({"data": {"meanwhile": "yes"}}))
        return review_of(request)

    await a_chain(store, answer).execute(a_patch(store, a="2"))

    assert seen == [{"a": "2"}, {"a": "2", "meanwhile": "yes"}]
    assert store.get("configmaps", "c")["data"] == {"a": "2", "meanwhile": "yes"}


@pytest.mark.parametrize("answer", [None, {}, {"response": {"uid": "another", "allowed": True}}, []])
async def test_an_answer_that_is_none_is_a_failure_of_the_webhook(answer: Any) -> None:
    store = a_store()
    store.create("configmaps", a_config_map("c", a="1"))

    with pytest.raises(ApiError, match='failed calling webhook "check"') as refusal:
        await a_chain(store, lambda _: answer).execute(a_patch(store, a="2"))

    assert refusal.value.code == 500
    assert store.get("configmaps", "c")["data"] == {"a": "1"}


async def test_a_dry_run_is_refused_where_a_webhook_has_side_effects() -> None:
    store = a_store()
    store.create("configmaps", a_config_map("c", a="1"))
    chain = a_chain(store, review_of, sideEffects="Some")
    call = a_patch(store, a="2")

    with pytest.raises(ApiError, match="does not support dry run"):
        await chain.execute(Call("PATCH", call.target, {"dryRun": "All"}, MERGE, call.body))
