"""A GPU as a bar of text: how much is allocated by its fill, how busy it is by its colour. Pure."""

from dataclasses import dataclass

from rich.text import Text

WIDE_CELLS = 4
_EIGHTHS_ACROSS = " ▏▎▍▌▋▊▉█"
_FREE = "·"
_EIGHTHS_UP = f"{_FREE}▁▂▃▄▅▆▇█"
_TRACK = "on grey23"
_IDLE, _LOW, _BUSY = 0.05, 0.5, 0.9
# No red among them: that is for what is broken, and a GPU at full load is what one pays for.
LOAD_STYLES = {"idle": "blue", "low": "cyan", "busy": "green", "full": "bold bright_green"}


@dataclass(frozen=True, slots=True)
class Bar:
    """`utilization_ratio` None: not known, which is shown as such and not as idle."""

    allocated_ratio: float
    utilization_ratio: float | None = None
    unhealthy: bool = False
    untrusted: bool = False
    slices: str = ""
    """Of a card that is cut, one character a memory slice: # given, = free, * being changed, . nothing."""


def wide_bar(bar: Bar, cells: int = WIDE_CELLS) -> Text:
    """Always that many cells wide."""
    if bar.unhealthy or bar.untrusted:
        return Text(_mark(bar) * cells, _style(bar))
    if bar.slices:
        return Text(_cut_cells(bar.slices, cells), "magenta")
    eighths = _eighths(bar.allocated_ratio, cells * 8)
    filled = "█" * (eighths // 8) + (_EIGHTHS_ACROSS[eighths % 8] if eighths % 8 else "")
    return Text(filled.ljust(cells, _FREE), f"{_style(bar)} {_TRACK}")


def narrow_bar(bar: Bar) -> Text:
    """One cell; a dot is a free GPU."""
    if bar.unhealthy or bar.untrusted:
        return Text(_mark(bar), _style(bar))
    return Text(_EIGHTHS_UP[_eighths(bar.allocated_ratio, 8)], _style(bar))


def _cut_cells(slices: str, cells: int) -> str:
    """Each cell shows its part of the card: what is being changed first, then what is given, then free."""
    shown = ""
    for cell in range(cells):
        part = slices[cell * len(slices) // cells : max(1, (cell + 1) * len(slices) // cells)] or "."
        if "*" in part:
            shown += "*"
        elif "#" in part:
            shown += "■" if set(part) == {"#"} else "◧"
        else:
            shown += "□" if "=" in part else _FREE
    return shown


def _eighths(ratio: float, most: int) -> int:
    """Whatever is in use shows, and only what is full is shown as full."""
    rounded = round(min(1.0, max(0.0, ratio)) * most)
    if 0 < ratio < 1:
        return min(most - 1, max(1, rounded))
    return rounded


def _mark(bar: Bar) -> str:
    return "x" if bar.unhealthy else "?"


def _style(bar: Bar) -> str:
    if bar.unhealthy:
        return "bold red"
    if bar.untrusted:
        return "yellow"
    if bar.utilization_ratio is None:
        return "white"
    if bar.utilization_ratio < _IDLE:
        return LOAD_STYLES["idle"]
    if bar.utilization_ratio < _LOW:
        return LOAD_STYLES["low"]
    return LOAD_STYLES["busy" if bar.utilization_ratio < _BUSY else "full"]
