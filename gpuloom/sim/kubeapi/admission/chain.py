"""A write on its way to the store: webhooks change it, webhooks check it, then it is stored.

The store's verbs never wait, so a write is made twice: as a dry run, whose outcome the webhooks see, and for
good once all agree. If the object changed while they were asked, everything starts again, a few times.
"""

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

import orjson

from gpuloom.errors import InvalidRequestError
from gpuloom.sim.kubeapi.admission.caller import CallFailedError, WebhookCaller
from gpuloom.sim.kubeapi.admission.conditions import conditions_hold
from gpuloom.sim.kubeapi.admission.reviews import (
    UnusableAnswerError,
    Verdict,
    admission_request,
    admission_review,
    failure,
    read_answer,
)
from gpuloom.sim.kubeapi.admission.webhooks import (
    MUTATING_KEY,
    VALIDATING_KEY,
    Attributes,
    Webhook,
    is_asked,
    read_webhooks,
)
from gpuloom.sim.kubeapi.endpoints import requests
from gpuloom.sim.kubeapi.endpoints.verbs import Answer, Call, Verbs
from gpuloom.sim.kubeapi.objects.patches import APPLY, json_patch
from gpuloom.sim.kubeapi.status import ApiError, bad_request, stale
from gpuloom.sim.kubeapi.storage.collection import Entry, Object
from gpuloom.sim.kubeapi.verbs.store import Store

_TRIES = 5
_NOT_ASKED_ABOUT = (MUTATING_KEY, VALIDATING_KEY)
_WRITTEN_BY_SERVER = ("uid", "creationTimestamp", "generation", "resourceVersion")


@dataclass(frozen=True, slots=True)
class _Webhooks:
    mutating: tuple[Webhook, ...]
    validating: tuple[Webhook, ...]

    def __bool__(self) -> bool:
        return bool(self.mutating or self.validating)


class AdmissionChain:
    def __init__(self, store: Store, verbs: Verbs, caller: WebhookCaller) -> None:
        self._store = store
        self._verbs = verbs
        self._caller = caller

    async def execute(self, call: Call) -> Answer:
        """As Verbs.execute; raise also the ApiError by which a webhook denies, or fails."""
        webhooks = self._webhooks(call)
        if not webhooks:
            return self._verbs.execute(call)
        for _ in range(_TRIES):
            entry = self._entry(call)
            admitted = await self._admitted(call, entry, webhooks)
            # Nothing is awaited from here on: what the webhooks saw is what is replaced.
            now = self._entry(call)
            if (now and now.version) == (entry and entry.version):
                return self._verbs.execute(admitted)
        raise stale(call.target.resource.key, call.target.name)

    def _webhooks(self, call: Call) -> _Webhooks:
        """None for reads, subresources with verbs of their own, and configurations of webhooks themselves."""
        target = call.target
        is_write = call.method in ("PUT", "PATCH", "DELETE") if target.name else call.method == "POST"
        if (
            not is_write
            or target.subresource not in ("", "status")
            or target.resource.key in _NOT_ASKED_ABOUT
        ):
            return _Webhooks((), ())
        return _Webhooks(self._configured(MUTATING_KEY), self._configured(VALIDATING_KEY))

    def _configured(self, key: str) -> tuple[Webhook, ...]:
        """By the names of their configurations, then in the order in which those list them."""
        return tuple(webhook for one in self._store.select(key) for webhook in read_webhooks(one))

    async def _admitted(self, call: Call, entry: Entry | None, webhooks: _Webhooks) -> Call:
        old = entry.obj if entry is not None else None
        if call.method == "DELETE":
            await self._validate(webhooks.mutating, _attributes(call, old, None))
            await self._validate(webhooks.validating, _attributes(call, old, None))
            return call
        first = self._preview(call)
        before = _as_given(call, first) if old is None else first
        after = await self._mutate(webhooks.mutating, _attributes(call, old, before))
        admitted = call if after == before and old is not None else _rewritten(call, after, first, old)
        await self._validate(webhooks.validating, _attributes(call, old, self._preview(admitted)))
        return admitted

    async def _mutate(self, webhooks: Sequence[Webhook], write: Attributes) -> Object:
        """One after the other; those that wish it are asked once more if a later one changed the object."""
        seen: dict[int, Object] = {}
        for round_ in range(2):
            for index, webhook in enumerate(webhooks):
                if round_ and not (webhook.reinvoked and index in seen and seen[index] != write.new):
                    continue
                verdict = await self._ask(webhook, write)
                if verdict is None:
                    continue
                if verdict.patch and write.new is not None:
                    write = replace(write, new=json_patch(write.new, list(verdict.patch)))
                seen[index] = write.new or {}
        return write.new or {}

    async def _validate(self, webhooks: Sequence[Webhook], write: Attributes) -> None:
        """All at once; of several denials the first in order is told."""
        asked = (self._ask(webhook, write) for webhook in webhooks)
        for outcome in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _ask(self, webhook: Webhook, write: Attributes) -> Verdict | None:
        """None: not asked, or failed and of no matter. Raise ApiError for a denial."""
        if not is_asked(webhook, write, self._namespace(write)):
            return None
        request = admission_request(write, str(uuid.uuid4()))
        try:
            variables = {"object": write.new, "oldObject": write.old, "request": request}
            if not conditions_hold(webhook.conditions, variables):
                return None
            if write.dry_run and webhook.side_effects not in ("None", "NoneOnDryRun"):
                raise bad_request(f'admission webhook "{webhook.name}" does not support dry run')
            answer = await self._caller.ask(webhook, admission_review(request))
            return read_answer(webhook, request["uid"], answer)
        except (CallFailedError, UnusableAnswerError, InvalidRequestError) as error:
            if webhook.fails_open:
                return None
            raise failure(webhook, str(error)) from None

    def _namespace(self, write: Attributes) -> Object | None:
        if write.resource.key == "namespaces":
            return write.new or write.old
        namespaces = self._store.registry.get("namespaces")
        entry = self._store.database.find(namespaces, ("", write.namespace))
        return entry.obj if entry is not None else None

    def _preview(self, call: Call) -> Object:
        dry = replace(call, query={**call.query, "dryRun": "All"}, as_table=False)
        preview: Object = orjson.loads(self._verbs.execute(dry).body)
        return preview

    def _entry(self, call: Call) -> Entry | None:
        target = call.target
        if not target.name:
            return None
        key = (target.namespace if target.resource.namespaced else "", target.name)
        return self._store.database.find(target.resource, key)


def _attributes(call: Call, old: Object | None, new: Object | None) -> Attributes:
    target = call.target
    operation = "DELETE" if new is None else "CREATE" if old is None else "UPDATE"
    return Attributes(
        operation=operation,
        resource=target.resource,
        version=target.version,
        subresource=target.subresource,
        namespace=target.namespace,
        name=target.name or str(((new or {}).get("metadata") or {}).get("name", "")),
        old=old,
        new=new,
        dry_run=requests.is_dry_run(call.query),
    )


def _as_given(call: Call, preview: Object) -> Object:
    """A new object as mutating webhooks see it: without what the server gives it afterwards."""
    metadata = {key: value for key, value in preview["metadata"].items() if key not in _WRITTEN_BY_SERVER}
    given = orjson.loads(call.body) if call.content_type != APPLY else preview
    if not (given.get("metadata") or {}).get("name"):
        metadata.pop("name", None)
    return {**preview, "metadata": metadata}


def _rewritten(call: Call, after: Object, preview: Object, old: Object | None) -> Call:
    """The same write with the object that the webhooks made of it."""
    if call.content_type == APPLY:
        return replace(call, replacement=after)
    if old is None:
        # The name that the webhooks heard of (if they did) is the one it gets.
        metadata = {"name": preview["metadata"].get("name"), **after["metadata"]}
        return replace(call, body=orjson.dumps({**after, "metadata": metadata}))
    if after["metadata"].get("name") != call.target.name:
        raise ApiError(400, "a webhook may not change the name of an object")
    return replace(call, method="PUT", body=orjson.dumps(after), content_type="application/json")
