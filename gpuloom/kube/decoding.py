"""JSON from the API server, whatever its users stored in it.

The parser stops at 1,024 levels; the API server takes more, where nobody described what a field of a custom
resource holds. One such object must not hide all others of its kind: what is nested too deep is left out.
"""

import re
from typing import Any

import orjson

MAX_DEPTH = 200
"""Of what is left when something was nested too deep. Nothing that we read is half as deep."""

_TOKENS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]')
_OPENING, _CLOSING = (b"{", b"["), (b"}", b"]")


def decoded(text: bytes) -> Any:
    """Raise orjson.JSONDecodeError for what is no JSON."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if "depth" not in str(error):
            raise
    return orjson.loads(_without_depths(text))


def _without_depths(text: bytes) -> bytes:
    """With null for whatever is nested deeper than MAX_DEPTH."""
    kept: list[bytes] = []
    depth = copied = 0
    for token in _TOKENS.finditer(text):
        if token.group() in _OPENING:
            depth += 1
            if depth == MAX_DEPTH + 1:
                kept += [text[copied : token.start()], b"null"]
        elif token.group() in _CLOSING:
            if depth == MAX_DEPTH + 1:
                copied = token.end()
            depth -= 1
    return b"".join([*kept, text[copied:]])
