"""Whether HTTP/2 is offered to kube-scheduler: by the setting, and by how old kube-scheduler may be."""

import logging
import re

from gpuloom.errors import GpuloomError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import JsonObject
from services.scheduler_extender.config import Http2

_log = logging.getLogger(__name__)

_FROM = (1, 34)
"""kube-scheduler 1.33 is the first to leave a connection that hangs. It may be one older than the API."""

_NUMBER = re.compile("[0-9]{1,6}")


async def offers_http2(setting: Http2, client: KubeClient, timeout_s: float) -> bool:
    if setting is not Http2.AUTO:
        return setting is Http2.ON
    try:
        version = version_of(await client.version(timeout_s=timeout_s))
    except GpuloomError as error:
        _log.warning("HTTP/2 is not offered: Kubernetes' version is not known", extra={"reason": str(error)})
        return False
    if version is None:
        _log.warning("HTTP/2 is not offered: Kubernetes' version can't be read")
    return version is not None and version >= _FROM


def version_of(answer: JsonObject) -> tuple[int, int] | None:
    """Major and minor. Some providers write the minor as `33+`."""
    found = [_NUMBER.match(str(answer.get(name))) for name in ("major", "minor")]
    major, minor = (None if match is None else int(match[0]) for match in found)
    return None if major is None or minor is None else (major, minor)
