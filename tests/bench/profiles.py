"""The profiles of our extender's rounds, added up and shown: where its time goes."""

import io
import pstats
from collections.abc import Sequence
from pathlib import Path

_LINES = 30


def render_profiles(paths: Sequence[Path]) -> str:
    """Empty without profiles."""
    existing = [str(path) for path in paths if path.exists()]
    if not existing:
        return ""
    text = io.StringIO()
    stats = pstats.Stats(*existing, stream=text)
    for order in ("tottime", "cumulative"):
        stats.sort_stats(order).print_stats(_LINES)
    return text.getvalue()
