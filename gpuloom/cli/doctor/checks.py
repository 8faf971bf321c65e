"""All checks of a cluster, in the order in which an installation depends on them. Pure.

A part that could not be read is told as skipped; it counts neither as healthy nor as broken.
"""

from collections.abc import Callable, Iterable

from gpuloom.cli.doctor import cluster_checks, device_checks, service_checks
from gpuloom.cli.doctor.findings import Finding
from gpuloom.cli.doctor.observed import Observed

Check = Callable[[Observed], Iterable[Finding]]

CHECKS: tuple[Check, ...] = (
    cluster_checks.version,
    cluster_checks.definitions,
    cluster_checks.priority_classes,
    service_checks.services,
    service_checks.leader,
    service_checks.agents,
    device_checks.trust,
    device_checks.delivery,
    cluster_checks.webhooks,
    cluster_checks.admission_policies,
    cluster_checks.rights,
    cluster_checks.certificates,
    cluster_checks.clocks,
    cluster_checks.prometheus,
)

RUN_CHECKS: tuple[Check, ...] = (
    cluster_checks.version,
    cluster_checks.definitions,
    cluster_checks.priority_classes,
    service_checks.processes,
    device_checks.trust,
    device_checks.delivery,
    cluster_checks.webhooks,
    cluster_checks.prometheus,
)
"""The simulated API has no policies, accounts or clock of its own, and nothing of a run is a pod."""


def findings_of(observed: Observed) -> tuple[Finding, ...]:
    checks = CHECKS if observed.run is None else RUN_CHECKS
    return tuple(finding for check in checks for finding in check(observed))
