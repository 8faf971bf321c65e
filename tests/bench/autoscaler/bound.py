"""A lower bound of what any mix of machines costs: whole machines, pods that may be cut into pieces.

Solved by HiGHS. Its dual bound is what is compared with, so that an unfinished search flatters nobody.
"""

from collections.abc import Sequence

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_matrix

from services.autoscaler.core.buying.filling import MachineForm, Stencils
from services.autoscaler.core.buying.offerings import Offering
from services.autoscaler.core.buying.pending import PendingPod

_RESOURCES = ("gpuloom.dev/gpu-milli", "cpu", "memory")


def lower_bound_nano_usd(
    pods: Sequence[PendingPod], offerings: Sequence[Offering], limit_s: float = 20.0
) -> float:
    """Variables: how many of each machine (whole), and how much of each pod on each (0 to 1)."""
    stencils = Stencils(MachineForm())
    samples = [stencils.sample(one) for one in offerings]
    pairs = [
        (place, kind)
        for place, pod in enumerate(pods)
        for kind, one in enumerate(offerings)
        if not stencils.sample(one).take(pod)
    ]
    machines = len(offerings)
    cost = np.concatenate([[one.nano_usd_per_hour / 1e9 for one in offerings], np.zeros(len(pairs))])
    rows: list[tuple[int, int, float]] = []
    lower: list[float] = []
    upper: list[float] = []
    for place in range(len(pods)):
        row = len(lower)
        rows += [(row, machines + at, 1.0) for at, (pod, _) in enumerate(pairs) if pod == place]
        lower.append(1.0)
        upper.append(1.0)
    for kind, sample in enumerate(samples):
        for resource in _RESOURCES:
            row, size = len(lower), sample.node.allocatable[resource]
            free = size - sample.use.requested.get(resource, 0)
            rows += [
                (row, machines + at, pods[pod].pod.requests.get(resource, 0) / size)
                for at, (pod, of) in enumerate(pairs)
                if of == kind
            ]
            rows.append((row, kind, -free / size))
            lower.append(-np.inf)
            upper.append(0.0)
    # A pod needs a machine of its kind to be there at all.
    for at, (_, kind) in enumerate(pairs):
        rows += [(len(lower), machines + at, 1.0), (len(lower), kind, -1.0)]
        lower.append(-np.inf)
        upper.append(0.0)
    where, columns, values = zip(*rows, strict=True)
    matrix = coo_matrix((values, (where, columns)), shape=(len(lower), len(cost)))
    whole = np.concatenate([np.ones(machines), np.zeros(len(pairs))])
    most = np.concatenate([np.full(machines, np.inf), np.ones(len(pairs))])
    result = milp(
        cost,
        constraints=LinearConstraint(matrix, lower, upper),
        integrality=whole,
        bounds=Bounds(np.zeros(len(cost)), most),
        options={"time_limit": limit_s, "mip_rel_gap": 1e-4},
    )
    return float(result.mip_dual_bound) * 1e9
