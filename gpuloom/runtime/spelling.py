"""Whether a name that nobody knows is a slip of the pen for one that we know. Pure.

One environment often serves several services, so most unknown names are somebody else's. A false alarm
keeps a service from starting; a missed slip costs a look at --print-config. So only near-certain slips
count: letter case, a lost or added underscore, or one wrong letter inside one longer word.
"""

from collections.abc import Iterable

# In words as short as KEY, CA or MIN, one letter makes another word.
SHORTEST_MISSPELT_WORD = 4


def intended_name(unknown: str, known: Iterable[str]) -> str | None:
    """The known name that `unknown` was most likely meant to be; the first in order of the alphabet."""
    return next((name for name in sorted(known) if is_misspelling(unknown, name)), None)


def is_misspelling(written: str, name: str) -> bool:
    written, name = written.upper(), name.upper()
    if written.replace("_", "") == name.replace("_", ""):
        return True
    written_words, name_words = written.split("_"), name.split("_")
    if len(written_words) != len(name_words):
        return False
    differing = [pair for pair in zip(written_words, name_words, strict=True) if pair[0] != pair[1]]
    return len(differing) == 1 and is_misspelt_word(*differing[0])


def is_misspelt_word(written: str, word: str) -> bool:
    if len(word) < SHORTEST_MISSPELT_WORD or not (written.isalpha() and word.isalpha()):
        return False
    # Slips rarely hit the first letter, and NODE and MODE, HOST and COST are different things.
    if written[0] != word[0]:
        return False
    # A trailing S is another name, not a slip: HTTP and HTTPS, NODE and NODES.
    if written in (word + "S", word.removesuffix("S")):
        return False
    return is_one_edit(written, word)


def is_one_edit(one: str, other: str) -> bool:
    """Whether one letter added, dropped or replaced, or two neighbours swapped, turns one into the other."""
    while one and other and one[0] == other[0]:
        one, other = one[1:], other[1:]
    while one and other and one[-1] == other[-1]:
        one, other = one[:-1], other[:-1]
    if len(one) == 2 and len(other) == 2:
        return one == other[::-1]
    return max(len(one), len(other)) == 1
