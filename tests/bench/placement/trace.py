"""The openb experiment: nodes, tasks, and the order in which tasks arrive.

Reads the published CSV files and decides nothing. The protocol is the published one: the pod list is shuffled
by seed, then random tasks of it are appended; tasks never leave; a task that fits nowhere is dropped.
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

NODE_LIST = "openb_node_list_gpu_node.csv"
POD_LIST_PREFIX = "openb_pod_list_"

# What is allocated when so much of the capacity has arrived is the result.
MEASURED_AT_PERCENT = 100

# Tools write an empty cell in these ways; the reader gives None where a row is short.
_EMPTY = (None, "", "nan", "NaN")

Row = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Machine:
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


@dataclass(frozen=True, slots=True)
class Task:
    """`gpus` is 0 for a task that needs none; `gpu_milli` is per GPU; no `models` means any."""

    cpu_milli: int
    memory_mib: int
    gpus: int
    gpu_milli: int
    models: tuple[str, ...] = ()

    @property
    def size_milli(self) -> int:
        return self.gpus * self.gpu_milli


def read_machines(folder: Path) -> list[Machine]:
    with (folder / NODE_LIST).open(newline="") as file:
        return [
            Machine(
                int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"]), "".join(_names(row, "model"))
            )
            for row in csv.DictReader(file)
        ]


def read_variants(folder: Path) -> dict[str, Path]:
    """The pod lists of the folder by name of the variant."""
    return {
        path.stem.removeprefix(POD_LIST_PREFIX): path
        for path in sorted(folder.glob(f"{POD_LIST_PREFIX}*.csv"))
    }


def read_tasks(path: Path) -> list[Task]:
    """Only `num_gpu` must be there: of what has no column nothing is asked; GPUs are whole, of any model."""
    with path.open(newline="") as file:
        return [_task(row) for row in csv.DictReader(file)]


def capacity_milli(machines: list[Machine]) -> int:
    return 1000 * sum(machine.gpus for machine in machines)


def shuffled(machines: list[Machine], seed: int) -> list[Machine]:
    """Equal nodes are taken in this order."""
    ordered = list(machines)
    Random(f"nodes {seed}").shuffle(ordered)
    return ordered


def arrivals(tasks: list[Task], capacity: int, seed: int) -> Iterator[tuple[Task, float]]:
    """Tasks with the percentage of the capacity that has arrived with them, as far as it matters."""
    random = Random(f"tasks {seed}")
    ordered = list(tasks)
    random.shuffle(ordered)
    arrived = 0
    while True:
        for task in ordered:
            arrived += task.size_milli
            percent = 100 * arrived / capacity
            if round(percent) > MEASURED_AT_PERCENT:
                return
            yield task, percent
        ordered = [random.choice(tasks)]


def _task(row: Row) -> Task:
    gpus = int(row["num_gpu"] or 0)
    return Task(
        cpu_milli=_amount(row, "cpu_milli", 0),
        memory_mib=_amount(row, "memory_mib", 0),
        gpus=gpus,
        gpu_milli=_amount(row, "gpu_milli", 1000) if gpus else 0,
        models=_names(row, "gpu_spec"),
    )


def _amount(row: Row, column: str, missing: int) -> int:
    text = row.get(column)
    return missing if text in _EMPTY else int(float(text or 0))


def _names(row: Row, column: str) -> tuple[str, ...]:
    text = row.get(column)
    return () if text in _EMPTY else tuple(name for name in (text or "").split("|") if name)
