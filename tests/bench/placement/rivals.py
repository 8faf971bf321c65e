"""Two policies to compare with, written from their descriptions.

BestFit takes the node that has least left afterwards, CPU and GPU counted alike. FGD ("Beware of
Fragmentation", USENIX ATC '23) takes the node whose expected fragmentation, over the typical tasks of the
trace, grows least. Both round scores to whole numbers up to 100, as published: FGD's figure depends on it.
"""

from collections import Counter
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tests.bench.placement.trace import Machine, Task

MAX_GPUS = 8
# FGD looks at the most popular tasks that make up this part of the trace.
TYPICAL_PART = 0.95

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Policy(Protocol):
    name: str

    def place(self, task: Task) -> bool:
        """Take what the task needs from the best node; False if it fits nowhere."""


class _Cluster:
    """What is free, one row a node; GPUs that a node lacks have nothing free."""

    def __init__(self, machines: list[Machine]) -> None:
        self.cpu = np.array([machine.cpu_milli for machine in machines])
        self.memory = np.array([machine.memory_mib for machine in machines])
        self.models = np.array([machine.model for machine in machines])
        gpus = np.array([machine.gpus for machine in machines])
        self.free = np.where(np.arange(MAX_GPUS) < gpus[:, None], 1000, 0)

    def fitting(self, task: Task) -> Flags:
        fits = (self.cpu >= task.cpu_milli) & (self.memory >= task.memory_mib)
        if task.gpus:
            fits &= (self.free >= task.gpu_milli).sum(axis=1) >= task.gpus
        if task.models:
            fits &= np.isin(self.models, task.models)
        return np.asarray(fits)

    def take(self, node: int, gpus: list[int], task: Task) -> None:
        self.cpu[node] -= task.cpu_milli
        self.memory[node] -= task.memory_mib
        self.free[node, gpus] -= task.gpu_milli

    def tightest(self, node: int, task: Task) -> list[int]:
        """The GPUs with least free that still fit."""
        free = self.free[node]
        order = [int(gpu) for gpu in np.argsort(free, kind="stable") if free[gpu] >= task.gpu_milli]
        return order[: task.gpus]


class BestFit:
    name = "BestFit"

    def __init__(self, machines: list[Machine]) -> None:
        self._cluster = _Cluster(machines)
        self._most_cpu = max(machine.cpu_milli for machine in machines)
        self._most_gpu = 1000 * max(machine.gpus for machine in machines)

    def place(self, task: Task) -> bool:
        cluster = self._cluster
        nodes = np.nonzero(cluster.fitting(task))[0]
        if not len(nodes):
            return False
        cpu_left = (cluster.cpu[nodes] - task.cpu_milli) / self._most_cpu
        gpu_left = (cluster.free[nodes].sum(axis=1) - task.size_milli) / self._most_gpu
        scores = (100 * (1 - (cpu_left + gpu_left) / 2)).astype(np.int64)
        node = int(nodes[np.argmax(scores)])
        cluster.take(node, cluster.tightest(node, task), task)
        return True


class FragmentationGradientDescent:
    """Scores are kept by task and made again for nodes that changed since."""

    name = "FGD"

    def __init__(self, machines: list[Machine], tasks: list[Task]) -> None:
        self._cluster = _Cluster(machines)
        self._typical = _Typical(tasks)
        self._fragments = self._typical.fragments(self._cluster.cpu, self._cluster.free, self._cluster.models)
        self._changes = np.zeros(len(machines), dtype=np.int64)
        self._kept: dict[Task, tuple[Numbers, Numbers, Numbers]] = {}

    def place(self, task: Task) -> bool:
        fits = self._cluster.fitting(task)
        if not fits.any():
            return False
        scores, gpus = self._scores(task, fits)
        node = int(np.argmax(np.where(fits, scores, -1)))
        shared = task.gpus == 1 and task.gpu_milli < 1000
        chosen = [int(gpus[node])] if shared else self._cluster.tightest(node, task)
        self._cluster.take(node, chosen, task)
        self._changes[node] += 1
        row = np.array([node])
        self._fragments[node] = self._typical.fragments(
            self._cluster.cpu[row], self._cluster.free[row], self._cluster.models[row]
        )[0]
        return True

    def _scores(self, task: Task, fits: Flags) -> tuple[Numbers, Numbers]:
        """Of every node that fits, and the GPU for a share."""
        if task not in self._kept:
            zeros = np.zeros(len(fits), dtype=np.int64)
            self._kept[task] = (zeros - 1, zeros.copy(), zeros.copy())
        seen, scores, gpus = self._kept[task]
        nodes = np.nonzero(fits & (seen != self._changes))[0]
        if len(nodes):
            options, option_gpus = self._options(task, nodes)
            rated = self._rate(task, options, option_gpus)
            # The first best option of a node wins, so write worse and later ones first.
            order = np.lexsort((-np.arange(len(rated)), rated))
            scores[options[order]] = rated[order]
            gpus[options[order]] = option_gpus[order]
            seen[nodes] = self._changes[nodes]
        return scores, gpus

    def _options(self, task: Task, nodes: Numbers) -> tuple[Numbers, Numbers]:
        """For a share every GPU of a node that differs from those before it; else the node itself."""
        if task.gpus != 1 or task.gpu_milli >= 1000:
            return nodes, np.full(len(nodes), -1)
        free = self._cluster.free[nodes]
        is_option = free >= task.gpu_milli
        for gpu in range(1, MAX_GPUS):
            is_option[:, gpu] &= (free[:, :gpu] != free[:, gpu : gpu + 1]).all(axis=1)
        places, gpus = np.nonzero(is_option)
        return nodes[places], gpus

    def _rate(self, task: Task, nodes: Numbers, gpus: Numbers) -> Numbers:
        free = self._cluster.free[nodes]
        if task.gpus == 1 and task.gpu_milli < 1000:
            free[np.arange(len(nodes)), gpus] -= task.gpu_milli
        elif task.gpus:
            full = np.cumsum(free >= task.gpu_milli, axis=1) <= task.gpus
            free = np.where(full & (free >= task.gpu_milli), free - task.gpu_milli, free)
        cpu = self._cluster.cpu[nodes] - task.cpu_milli
        after = self._typical.fragments(cpu, free, self._cluster.models[nodes])
        gained = (self._fragments[nodes] - after) / 1000
        rated: Numbers = (100 / (1 + np.exp(-gained))).astype(np.int64)
        return rated


class _Typical:
    """The popular tasks of a trace, and how much free GPU of a node none of them could use, on average."""

    def __init__(self, tasks: list[Task]) -> None:
        counts = Counter(tasks)
        typical: dict[Task, int] = {}
        for task, count in sorted(counts.items(), key=lambda item: -item[1]):
            if sum(typical.values()) >= TYPICAL_PART * len(tasks):
                break
            typical[task] = count
        self._tasks = list(typical)
        self._parts = np.array(list(typical.values())) / sum(typical.values())
        self._cpu = np.array([task.cpu_milli for task in self._tasks])
        self._gpus = np.array([task.gpus for task in self._tasks])
        self._milli = np.array([task.gpu_milli for task in self._tasks])

    def fragments(self, cpu: Numbers, free: Numbers, models: NDArray[np.str_]) -> NDArray[np.float64]:
        """All free GPU, for a task that the node can't take; else the GPUs that are too small for it."""
        total = free.sum(axis=1)
        fits_gpu = free[:, :, None] >= self._milli
        usable = (free[:, :, None] * fits_gpu).sum(axis=1)
        taken = (fits_gpu.sum(axis=1) >= self._gpus) & (cpu[:, None] >= self._cpu) & (self._gpus > 0)
        for number, task in enumerate(self._tasks):
            if task.models:
                taken[:, number] &= np.isin(models, task.models)
        left = total[:, None] - np.where(taken, usable, 0)
        fragments: NDArray[np.float64] = left @ self._parts
        return fragments
