"""A GPUWorkload as people see it in a list."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkloadRow:
    """Texts are empty where there is nothing to say yet; `created` is RFC 3339, None if not known."""

    namespace: str
    name: str
    model_name: str
    gpu_count: int
    priority: str
    strategy: str
    phase: str
    node: str
    job: str
    retries: int
    message: str
    created: str | None = None
