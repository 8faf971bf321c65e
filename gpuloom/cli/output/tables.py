"""Tables as plain lines: columns as wide as their widest cell, two spaces between. Pure.

Nothing is ever cut to a terminal's width: a line that is too long wraps there, and a pipe gets all of it.
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import compress

_GAP = "  "


def table_lines(
    rows: Sequence[Sequence[str]], right: Collection[str] = (), without: Collection[str] = ()
) -> Iterator[str]:
    """The first row is the header. `right` names the columns whose cells stand at the right, `without` those
    that are left out.
    """
    if without:
        kept = [title not in without for title in rows[0]]
        rows = [tuple(compress(row, kept)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    to_right = [title in right for title in rows[0]]
    for row in rows:
        cells = zip(row, widths, to_right, strict=True)
        yield _GAP.join(c.rjust(width) if end else c.ljust(width) for c, width, end in cells).rstrip()
