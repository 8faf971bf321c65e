"""Asks a webhook over HTTPS. Only webhooks by URL are reached: nothing here resolves Services."""

import base64
import binascii
import ssl
from functools import lru_cache
from typing import Any

import aiohttp
import orjson

from gpuloom.runtime.clock import Clock, deadline
from gpuloom.sim.kubeapi.admission.webhooks import Webhook

_MAX_ANSWER_BYTES = 3 * 1024 * 1024


class CallFailedError(Exception):
    """The webhook can't be reached, or does not answer with JSON in time."""


class WebhookCaller:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, webhook: Webhook, review: dict[str, Any]) -> Any:
        """Raise CallFailedError."""
        url = str(webhook.client.get("url") or "")
        if not url.startswith("https://"):
            raise CallFailedError("failed to call webhook: this server reaches webhooks by an https URL only")
        try:
            async with deadline(self._clock, webhook.timeout_s):
                return await self._post(url, webhook, review)
        except TimeoutError:
            raise CallFailedError(
                f'failed to call webhook: Post "{url}": context deadline exceeded'
            ) from None
        except (aiohttp.ClientError, OSError, ssl.SSLError) as error:
            raise CallFailedError(f'failed to call webhook: Post "{url}": {error}') from None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _post(self, url: str, webhook: Webhook, review: dict[str, Any]) -> Any:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        tls = _trust(str(webhook.client.get("caBundle") or ""))
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        post = self._session.post(url, data=orjson.dumps(review), headers=headers, ssl=tls)
        async with post as response:
            body = await response.content.read(_MAX_ANSWER_BYTES)
            if response.status != 200:
                raise CallFailedError(f"the server answered {response.status}")
            try:
                return orjson.loads(body)
            except orjson.JSONDecodeError as error:
                raise CallFailedError(f"the answer is not JSON: {error}") from None


@lru_cache(maxsize=64)
def _trust(bundle: str) -> ssl.SSLContext:
    """By the configuration's own authorities, or without any by the system's."""
    try:
        authorities = base64.b64decode(bundle, validate=True).decode() if bundle else None
        context = ssl.create_default_context(cadata=authorities)
    except (binascii.Error, UnicodeDecodeError, ssl.SSLError) as error:
        raise CallFailedError(f"unable to load root certificates: {error}") from None
    # Python 3.13 is stricter with authorities than Kubernetes is.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
