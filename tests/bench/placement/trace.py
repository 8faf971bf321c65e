"""The openb experiment: nodes, tasks, and the order in which tasks arrive.

Reads the published CSV files and decides nothing. The protocol is the published one: the pod list is shuffled
by seed, then random tasks of it are appended; tasks never leave; a task that fits nowhere is dropped.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

NODE_LIST = "openb_node_list_gpu_node.csv"
POD_LIST_PREFIX = "openb_pod_list_"

# What is allocated when so much of the capacity has arrived is the result.
MEASURED_AT_PERCENT = 100


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
            Machine(int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"]), row["model"])
            for row in csv.DictReader(file)
        ]


def read_variants(folder: Path) -> dict[str, Path]:
    """The pod lists of the folder by name of the variant."""
    return {
        path.stem.removeprefix(POD_LIST_PREFIX): path
        for path in sorted(folder.glob(f"{POD_LIST_PREFIX}*.csv"))
    }


def read_tasks(path: Path) -> list[Task]:
    with path.open(newline="") as file:
        return [
            Task(
                int(row["cpu_milli"]),
                int(row["memory_mib"]),
                int(row["num_gpu"]),
                int(row["gpu_milli"]),
                tuple(name for name in row["gpu_spec"].split("|") if name),
            )
            for row in csv.DictReader(file)
        ]


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
