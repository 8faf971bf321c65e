"""Intents in a ConfigMap, written before anything is begun and bounded by the lease."""

from collections.abc import Callable

from gpuloom.errors import GpuloomError, InvalidRequestError, NotFoundError, UnavailableError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import CONFIGMAPS
from services.mig_controller.core.intents import Intent, decode, encode

NAME = "gpuloom-mig-intents"
KEY = "intents.json"
_TIMEOUT_S = 3.0


class ConfigMapIntents:
    """`write_timeout_s` bounds a write by the lease, and raises NotReadyError without it."""

    def __init__(self, client: KubeClient, namespace: str, write_timeout_s: Callable[[float], float]) -> None:
        self._client = client
        self._namespace = namespace
        self._write_timeout_s = write_timeout_s

    async def load(self) -> tuple[Intent, ...]:
        try:
            found = await self._client.get(CONFIGMAPS, NAME, self._namespace, timeout_s=_TIMEOUT_S)
        except NotFoundError:
            return ()
        text = (found.get("data") or {}).get(KEY)
        try:
            return decode(text) if isinstance(text, str) else ()
        except InvalidRequestError as error:
            # Written by a version to come. Forgetting what is under way would be worse than waiting.
            raise UnavailableError(f"ConfigMap {NAME}: {error}") from None

    async def save(self, intents: tuple[Intent, ...]) -> None:
        content: JsonObject = {"data": {KEY: encode(intents)}}
        timeout_s = self._write_timeout_s(_TIMEOUT_S)
        try:
            await self._client.patch(CONFIGMAPS, NAME, self._namespace, content, timeout_s=timeout_s)
        except NotFoundError:
            metadata = {"name": NAME, "namespace": self._namespace}
            await self._client.create(CONFIGMAPS, {"metadata": metadata, **content}, timeout_s=timeout_s)
        except GpuloomError as error:
            raise UnavailableError(f"intents can't be written: {error}") from error
