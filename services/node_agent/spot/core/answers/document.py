"""The forms that clouds write in: JSON documents, times, single words. Pure.

Whatever the bytes are, the outcome is a bounded value or a MetadataError. A time that can't be read is only
not known: a notice without its time is still a notice.
"""

import re
from datetime import UTC, datetime
from typing import Any

import orjson

from services.node_agent.spot.core.problem import MetadataError, Problem

_LONGEST_TIME = 64
_RFC_1123 = "%a, %d %b %Y %H:%M:%S GMT"
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")


def malformed(text: str) -> MetadataError:
    return MetadataError(Problem.MALFORMED, text)


def json_object(body: bytes) -> dict[str, Any]:
    try:
        decoded = orjson.loads(body)
    except orjson.JSONDecodeError:
        decoded = None
    if not isinstance(decoded, dict):
        raise malformed("the answer is not a JSON object")
    return decoded


def ascii_text(body: bytes, longest: int) -> str:
    """One word of visible ASCII, such as a name or a token; it may go into a header as it is."""
    stripped = body.strip()
    if not 0 < len(stripped) <= longest or not all(0x21 <= byte <= 0x7E for byte in stripped):
        raise malformed("the answer is not one word of visible ASCII")
    return stripped.decode("ascii")


def is_word(value: object) -> bool:
    return isinstance(value, str) and _WORD.fullmatch(value) is not None


def iso_time(value: object) -> datetime | None:
    """A time without a zone is in UTC, as AWS documents."""
    if not isinstance(value, str) or len(value) > _LONGEST_TIME:
        return None
    try:
        read = datetime.fromisoformat(value)
        return read.replace(tzinfo=UTC) if read.tzinfo is None else read.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def rfc_1123_time(value: object) -> datetime | None:
    if not isinstance(value, str) or len(value) > _LONGEST_TIME:
        return None
    try:
        return datetime.strptime(value, _RFC_1123).replace(tzinfo=UTC)
    except ValueError:
        return None
