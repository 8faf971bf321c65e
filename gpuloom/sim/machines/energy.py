"""The energy counters of a simulated machine's cards, which go on while nobody reads them.

energy.json  joules by GPU UUID and when they were counted, written by the machine's agent now and then

What was used since then is the present power for that time: exact while the agent reads, an estimate over its
absence. A real card's counter is no finer than that to whoever reads it.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import orjson

ENERGY_FILE = "energy.json"
WRITE_INTERVAL_S = 5.0


class EnergyMeter:
    def __init__(self, directory: Path, now_s: float) -> None:
        """A machine that was never read counts from now on."""
        self._path = directory / ENERGY_FILE
        self._energy_j: dict[str, float] = {}
        self._counted_at_s = now_s
        self._loaded = False
        self._written_at_s = 0.0

    def count(self, power_w: Mapping[str, float], now_s: float) -> dict[str, float]:
        """The counters of the cards that answer, by the wall clock: it goes on while no process does."""
        if not self._loaded:
            self._load()
        # A clock that is set back does not make cards give energy back.
        elapsed_s = max(0.0, now_s - self._counted_at_s)
        self._counted_at_s = now_s
        for uuid, watts in power_w.items():
            self._energy_j[uuid] = self._energy_j.get(uuid, 0.0) + watts * elapsed_s
        if abs(now_s - self._written_at_s) >= WRITE_INTERVAL_S:
            self._write(now_s)
        return {uuid: self._energy_j[uuid] for uuid in power_w}

    def _load(self) -> None:
        self._loaded = True
        if self._path.exists():
            document = orjson.loads(self._path.read_bytes())
            self._energy_j = {str(uuid): float(joules) for uuid, joules in document["joules"].items()}
            self._counted_at_s = float(document["countedAt"])

    def _write(self, now_s: float) -> None:
        self._written_at_s = now_s
        temporary = self._path.with_name(f".{ENERGY_FILE}.{os.getpid()}")
        temporary.write_bytes(orjson.dumps({"joules": self._energy_j, "countedAt": now_s}))
        temporary.replace(self._path)
