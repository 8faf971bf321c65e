"""Families of pod lists made from one: more CPU, more multi-GPU pods, pods that name a model, and so on.

A member of a family is named by its seed: equal input, equal output. In which order pods arrive is not said.
Even seeds are for choosing rules and constants, odd ones for judging them; some families only for judging.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from random import Random

from tests.bench.placement.trace import Machine, Task

# How many cards a pod gets that had a share, and how often.
CARDS = (1, 2, 4, 8)
CARDS_WEIGHTS = (40, 30, 20, 10)
# Of the pods that name models so many take a second one, too.
SECOND_MODEL_PART = 0.25

Maker = Callable[[list[Task], list[Machine], Random], list[Task]]


@dataclass(frozen=True, slots=True)
class Family:
    """`for_choosing`: whether rules and constants may be chosen on its even seeds."""

    name: str
    make: Maker
    for_choosing: bool

    def member(self, tasks: list[Task], machines: list[Machine], seed: int) -> list[Task]:
        return self.make(tasks, machines, Random(f"{self.name} {seed}"))


def _cpu_asked(lowest: float, highest: float) -> Maker:
    """Every pod asks for so many times the CPU, at most what a machine with as many GPUs has."""

    def make(tasks: list[Task], machines: list[Machine], random: Random) -> list[Task]:
        factor = random.uniform(lowest, highest)
        most = {count: max(m.cpu_milli for m in machines if m.gpus >= count) for count in _counts(tasks)}
        return [replace(task, cpu_milli=_scaled(task.cpu_milli, factor, most[task.gpus])) for task in tasks]

    return make


def _memory_asked(lowest: float, highest: float) -> Maker:
    """Every pod asks for so many times the memory, at most what a machine with as many GPUs has."""

    def make(tasks: list[Task], machines: list[Machine], random: Random) -> list[Task]:
        factor = random.uniform(lowest, highest)
        most = {count: max(m.memory_mib for m in machines if m.gpus >= count) for count in _counts(tasks)}
        return [replace(task, memory_mib=_scaled(task.memory_mib, factor, most[task.gpus])) for task in tasks]

    return make


def _without_gpus(lowest: float, highest: float) -> Maker:
    """So many times the pods that want no GPU."""

    def make(tasks: list[Task], machines: list[Machine], random: Random) -> list[Task]:
        without = [task for task in tasks if not task.gpus]
        count = round(random.uniform(lowest, highest) * len(without))
        return [task for task in tasks if task.gpus] + (random.choices(without, k=count) if without else [])

    return make


def _cards_for_shares(tasks: list[Task], machines: list[Machine], random: Random) -> list[Task]:
    """Pods with shares get whole cards instead, and CPU and memory like a pod that has as many."""
    models = {count: [task for task in tasks if task.gpus == count and not is_share(task)] for count in CARDS}
    return [_like(task, random.choices(CARDS, CARDS_WEIGHTS)[0], models, random) for task in tasks]


def _several_gpus(lowest: float, highest: float) -> Maker:
    """So much of the GPUs asked for is asked for by pods with several."""

    def make(tasks: list[Task], machines: list[Machine], random: Random) -> list[Task]:
        part = random.uniform(lowest, highest)
        several = [task for task in tasks if task.gpus > 1]
        others = [task for task in tasks if task.gpus == 1]
        wanted = sum(task.size_milli for task in tasks)
        drawn = [
            *_drawn(several, part * wanted, random),
            *_drawn(others, (1 - part) * wanted, random),
        ]
        return [task for task in tasks if not task.gpus] + drawn

    return make


def _shares(lowest: float, highest: float) -> Maker:
    """So much of the GPUs asked for is asked for as shares."""

    def make(tasks: list[Task], machines: list[Machine], random: Random) -> list[Task]:
        part = random.uniform(lowest, highest)
        shares = [task for task in tasks if is_share(task)]
        others = [task for task in tasks if task.gpus and not is_share(task)]
        wanted = sum(task.size_milli for task in tasks)
        drawn = [*_drawn(shares, part * wanted, random), *_drawn(others, (1 - part) * wanted, random)]
        return [task for task in tasks if not task.gpus] + drawn

    return make


def _models_named(lowest: float, highest: float) -> Maker:
    """So many of the pods with GPUs take only a model or two, chosen as often as there are cards of it."""

    def make(tasks: list[Task], machines: list[Machine], random: Random) -> list[Task]:
        part = random.uniform(lowest, highest)
        return [
            _named(task, machines, random) if task.gpus and random.random() < part else task for task in tasks
        ]

    return make


# Where lists of other clusters would differ from this one.
FAMILIES = (
    Family("cpu-asked-0.4-1", _cpu_asked(0.4, 1.0), for_choosing=False),
    Family("cpu-asked-1-1.5", _cpu_asked(1.0, 1.5), for_choosing=True),
    Family("cpu-asked-1.5-3", _cpu_asked(1.5, 3.0), for_choosing=True),
    Family("without-gpus-0.5-2.5", _without_gpus(0.5, 2.5), for_choosing=True),
    Family("cards-for-shares", _cards_for_shares, for_choosing=True),
    Family("several-gpus-20-60", _several_gpus(0.2, 0.6), for_choosing=True),
    Family("models-named-5-20", _models_named(0.05, 0.2), for_choosing=False),
    Family("models-named-20-40", _models_named(0.2, 0.4), for_choosing=True),
    Family("shares-20-80", _shares(0.2, 0.8), for_choosing=False),
    Family("shares-100", _shares(1.0, 1.0), for_choosing=True),
    Family("memory-asked-2-6", _memory_asked(2.0, 6.0), for_choosing=False),
)


def is_share(task: Task) -> bool:
    return task.gpus == 1 and task.gpu_milli < 1000


def _counts(tasks: list[Task]) -> set[int]:
    return {task.gpus for task in tasks}


def _scaled(amount: int, factor: float, most: int) -> int:
    """What was asked for beyond any machine stays as it is."""
    return round(factor * amount) if factor * amount <= most else max(amount, most)


def _drawn(tasks: list[Task], size_milli: float, random: Random) -> Iterable[Task]:
    """Tasks drawn at random until they want so much."""
    left = size_milli
    while tasks and left > 0:
        task = random.choice(tasks)
        left -= task.size_milli
        yield task


def _like(task: Task, cards: int, models: dict[int, list[Task]], random: Random) -> Task:
    if not is_share(task) or not models[cards]:
        return task
    model = random.choice(models[cards])
    return replace(model, models=task.models)


def _named(task: Task, machines: list[Machine], random: Random) -> Task:
    """Of a model or two that could hold the task."""
    able = [
        machine
        for machine in machines
        if machine.gpus >= task.gpus
        and machine.cpu_milli >= task.cpu_milli
        and machine.memory_mib >= task.memory_mib
    ]
    if not able:
        return task
    count = 2 if random.random() < SECOND_MODEL_PART else 1
    names = {machine.model for machine in random.choices(able, [machine.gpus for machine in able], k=count)}
    return replace(task, models=tuple(sorted(names)))
