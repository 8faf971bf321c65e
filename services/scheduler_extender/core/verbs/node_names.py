"""The names of the nodes that kube-scheduler offers, read only as far as somebody asks. Pure.

Every filter comes with the name of nearly every node, and what is answered are a few: whether these are among
the names is seen in the text as it came. Thousands of strings are made only for an answer about all of them.
"""

from collections.abc import Sequence
from functools import lru_cache

import orjson

# All that a Kubernetes object's name is made of; whatever else a text has, it is not looked at as text.
_OF_NAMES = b"abcdefghijklmnopqrstuvwxyz0123456789-."
_ENTRY = b'"",'
_BETWEEN = b'","'
_QUOTE = b'"'


class OfferedNames:
    """Either names, or the text of a list of names without its brackets; see `listed_text`."""

    __slots__ = ("_count", "_names", "_text")

    def __init__(self, names: Sequence[str] = (), text: bytes | None = None) -> None:
        self._text = text
        self._names = None if text is not None else tuple(dict.fromkeys(names))
        self._count = len(names) if text is None else text.count(_QUOTE) // 2

    def __len__(self) -> int:
        """How many there are in the call, repeated ones included."""
        return self._count

    def __contains__(self, name: object) -> bool:
        if self._text is None or not isinstance(name, str):
            return name in self.all()
        written = name.encode()
        return not written.translate(None, _OF_NAMES) and b'"%b"' % written in self._text

    def all(self) -> tuple[str, ...]:
        """Each once."""
        if self._names is None:
            self._names = tuple(dict.fromkeys(orjson.loads(b"[%b]" % (self._text or b""))))
        return self._names


def listed_text(text: bytes) -> bool:
    """Whether this is names in quotes with commas between them, as Go writes them, and nothing else."""
    if not text:
        return True
    marks = text.translate(None, _OF_NAMES)
    count = (len(marks) + 1) // len(_ENTRY)
    # Quotes and commas come in this order, and nothing of a name stands outside of its quotes.
    return (
        count > 0
        and marks == _marks(count)
        and text.count(_BETWEEN) == count - 1
        and text[:1] == text[-1:] == _QUOTE
    )


@lru_cache(maxsize=8)
def _marks(count: int) -> bytes:
    """What is left of so many names without the names."""
    return (_ENTRY * count)[:-1]
