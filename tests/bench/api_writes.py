"""How many writes the API server served, by what was written; from its own counters."""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import aiohttp

from gpuloom.errors import UnavailableError
from gpuloom.kube.access import access_from_kubeconfig
from gpuloom.runtime.clock import Clock

_NAME = "apiserver_request_total{"
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE", "APPLY", "DELETECOLLECTION"})
# The control plane's own housekeeping: nobody writes these because of a pod.
_BACKGROUND = frozenset({"leases", "tokenreviews", "subjectaccessreviews", "localsubjectaccessreviews"})
_QUIET_S = 0.5
_LONGEST_WAIT_S = 8.0

Writes = Counter[str]
"""By "VERB resource/subresource"."""


class WriteCounters:
    """Reads the API server's metrics as the owner of a kubeconfig."""

    def __init__(self, kubeconfig: Path, clock: Clock) -> None:
        self._access = access_from_kubeconfig([kubeconfig], None, clock)
        self._clock = clock

    async def read(self) -> Writes:
        """Raise UnavailableError if the API server does not tell."""
        credential = await self._access.credential()
        tls = self._access.ssl_context(credential.certificate)
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session,
                session.get(f"{self._access.server}/metrics", ssl=tls or True) as answer,
            ):
                text = await answer.text()
                if answer.status != 200:
                    raise UnavailableError(f"the API server's metrics: status {answer.status}")
        except (aiohttp.ClientError, OSError) as error:
            raise UnavailableError(f"the API server's metrics can't be read: {error}") from error
        return parse_writes(text)

    async def settled(self) -> Writes:
        """When nothing was written for a moment: events come a little after what they tell of."""
        ends_s = self._clock.monotonic() + _LONGEST_WAIT_S
        before = await self.read()
        while self._clock.monotonic() < ends_s:
            await self._clock.sleep(_QUIET_S)
            now = await self.read()
            if now == before:
                break
            before = now
        return before


def parse_writes(text: str) -> Writes:
    """From the text that Prometheus reads; refused writes count as well."""
    writes: Writes = Counter()
    for line in text.splitlines():
        if not line.startswith(_NAME):
            continue
        labels_text, _, value = line.rpartition(" ")
        labels = dict(_LABEL.findall(labels_text))
        resource, subresource = labels.get("resource", ""), labels.get("subresource", "")
        if labels.get("verb") in _WRITES and resource not in _BACKGROUND:
            what = f"{resource}/{subresource}" if subresource else resource
            writes[f"{labels['verb']} {what}"] += int(float(value))
    return writes


def writes_between(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return {what: count - before.get(what, 0) for what, count in after.items() if count > before.get(what, 0)}
