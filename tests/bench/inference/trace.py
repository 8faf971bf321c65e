"""Days of requests made of recorded hours: arrivals and lengths are real, the course of the day is drawn.

Blocks of ten minutes are drawn from the recorded traces, one beside another, as many as the hour of the day
has. Within a block nothing is changed, so bursts are as they were recorded.
"""

import csv
import random
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

BLOCK_S = 600
PREFILL_TOKENS_S = 8000.0
DECODE_S = 0.025
"""A replica reads so many tokens a second, and gives one of each request in so many seconds."""
# How many recorded services answer at once, by hour of the day.
DAY = (1, 1, 1, 1, 1, 1, 2, 2, 3, 4, 4, 4, 3, 4, 4, 4, 4, 3, 3, 2, 2, 2, 1, 1)


@dataclass(frozen=True)
class Arrivals:
    """By second: the times of work of what arrives, in whole seconds of at least 1."""

    work_s: tuple[tuple[int, ...], ...]

    @property
    def seconds(self) -> int:
        return len(self.work_s)

    def half(self, second: bool) -> "Arrivals":
        middle = self.seconds // 2
        return Arrivals(self.work_s[middle:] if second else self.work_s[:middle])


def arrivals(data: Path, days: int, seed: int) -> Arrivals:
    """Raise FileNotFoundError if the traces are not there."""
    blocks = [
        block
        for name in ("AzureLLMInferenceTrace_conv.csv", "AzureLLMInferenceTrace_code.csv")
        for block in _blocks(data / "azure_llm" / name)
    ]
    draw = random.Random(seed)
    seconds: list[list[int]] = [[] for _ in range(days * 86_400)]
    for start in range(0, len(seconds), BLOCK_S):
        for _ in range(DAY[start // 3600 % 24]):
            for at, work_s in draw.choice(blocks):
                seconds[start + at].append(work_s)
    return Arrivals(tuple(map(tuple, seconds)))


def _blocks(file: Path) -> list[list[tuple[int, int]]]:
    requests = []
    with file.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            at = datetime.fromisoformat(row["TIMESTAMP"][:26])
            work_s = int(row["ContextTokens"]) / PREFILL_TOKENS_S + int(row["GeneratedTokens"]) * DECODE_S
            requests.append((at, max(1, round(work_s))))
    first = requests[0][0]
    count = int((requests[-1][0] - first).total_seconds()) // BLOCK_S
    blocks: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for at, work_s in requests:
        second = int((at - first).total_seconds())
        if second < count * BLOCK_S:
            blocks[second // BLOCK_S].append((second % BLOCK_S, work_s))
    return blocks
