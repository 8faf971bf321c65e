"""PromQL of what is measured: inference servers by their metric names, GPUs by DCGM's. Asks nothing.

A gauge is asked for by pod, so that one silent pod does not hide the others; a rate is summed by Prometheus.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpuloom.model.policies import InferenceServer

WINDOW_S = 60
"""Of rates and percentiles."""
SERVICE_WINDOW_S = 300
MOST_NAMES = 100
"""Pods are named one by one up to this many; more are described by a pattern."""


@dataclass(frozen=True, slots=True)
class ServerNames:
    """Metric names of one inference server. Empty: it has none of that kind.

    `latency` is a histogram without _bucket, and `latency_ms` one of its units in milliseconds; `summary` is
    a summary in its place. `service` is a sum of time and a count. `completed` and `arrived` are counters.
    """

    latency: str = ""
    latency_ms: float = 1000.0
    summary: str = ""
    waiting: str = ""
    running: str = ""
    arrived: str = ""
    completed: str = ""
    service: tuple[str, str] = ("", "")
    service_unit_s: float = 1.0


SERVERS = {
    InferenceServer.VLLM: ServerNames(
        latency="vllm:e2e_request_latency_seconds",
        waiting="vllm:num_requests_waiting",
        running="vllm:num_requests_running",
        completed="vllm:e2e_request_latency_seconds_count",
        service=("vllm:request_inference_time_seconds_sum", "vllm:request_inference_time_seconds_count"),
    ),
    InferenceServer.TGI: ServerNames(
        latency="tgi_request_duration",
        waiting="tgi_queue_size",
        running="tgi_batch_current_size",
        arrived="tgi_request_count",
        completed="tgi_request_duration_count",
        service=("tgi_request_inference_duration_sum", "tgi_request_inference_duration_count"),
    ),
    InferenceServer.TRITON: ServerNames(
        summary="nv_inference_request_summary_us",
        latency_ms=0.001,
        waiting="nv_inference_pending_request_count",
        completed="nv_inference_request_success",
        service=("nv_inference_compute_infer_duration_us", "nv_inference_request_success"),
        service_unit_s=1e-6,
    ),
    InferenceServer.SGLANG: ServerNames(
        latency="sglang:e2e_request_latency_seconds",
        waiting="sglang:num_queue_reqs",
        running="sglang:num_running_reqs",
        arrived="sglang:num_requests_total",
        completed="sglang:e2e_request_latency_seconds_count",
        service=("sglang:e2e_request_latency_seconds_sum", "sglang:e2e_request_latency_seconds_count"),
    ),
    InferenceServer.KSERVE: ServerNames(
        latency="request_predict_seconds",
        completed="request_predict_seconds_count",
        service=("request_predict_seconds_sum", "request_predict_seconds_count"),
    ),
}


@dataclass(frozen=True, slots=True)
class Pods:
    """Whose series are meant; no names: those of any pod that the target may have had.

    Prometheus puts `exported_` before labels that its own target labels hide.
    """

    namespace: str
    names: Sequence[str]
    target: str

    def selectors(self) -> tuple[str, str]:
        pattern = self._pattern()
        namespace = _quoted(self.namespace)
        return (
            f"namespace={namespace},pod=~{pattern}",
            f"exported_namespace={namespace},exported_pod=~{pattern}",
        )

    def _pattern(self) -> str:
        if not self.names or len(self.names) > MOST_NAMES:
            # Exactly the forms of names that workload controllers give, not every name that begins so.
            return _quoted(rf"{re.escape(self.target)}(-[a-z0-9]+)?-([a-z0-9]{{5}}|[0-9]+)")
        return _quoted("|".join(re.escape(name) for name in sorted(self.names)))


def servers_of(server: InferenceServer) -> list[ServerNames]:
    return list(SERVERS.values()) if server is InferenceServer.AUTO else [SERVERS[server]]


def latency_ms(server: InferenceServer, quantile: float, pods: Pods) -> str:
    found = []
    for one in servers_of(server):
        if one.latency:
            rates = f"sum by (le) ({_rate(one.latency + '_bucket', pods)})"
            found.append(f"{one.latency_ms:g} * histogram_quantile({quantile:g}, {rates})")
        if one.summary:
            labels = f'quantile="{quantile:g}"'
            found.append(f"max({_series(one.summary, pods, labels)}) * {one.latency_ms:g}")
    return _first(found)


def latency_pods(server: InferenceServer, pods: Pods) -> str:
    """How many pods a percentile is made of."""
    names = [one.completed for one in servers_of(server) if one.completed]
    return _first([f"count(count by ({POD}) ({_series(name, pods, form=_BY_POD)}))" for name in names])


def waiting_names(server: InferenceServer) -> tuple[str, ...]:
    return tuple(one.waiting for one in servers_of(server) if one.waiting)


def running_names(server: InferenceServer) -> tuple[str, ...]:
    return tuple(one.running for one in servers_of(server) if one.running)


def waiting_by_pod(server: InferenceServer, pods: Pods) -> str:
    return _by_pod(waiting_names(server), pods)


def running_by_pod(server: InferenceServer, pods: Pods) -> str:
    return _by_pod(running_names(server), pods)


def in_flight_by_pod(server: InferenceServer, pods: Pods) -> str:
    return _first(
        [
            f"sum by ({POD}) ({_series(one.running, pods, form=_BY_POD)}) + "
            f"sum by ({POD}) ({_series(one.waiting, pods, form=_BY_POD)})"
            for one in servers_of(server)
            if one.running and one.waiting
        ]
    )


def rate_by_pod(server: InferenceServer, pods: Pods) -> str:
    return _first(
        [
            f"sum by ({POD}) ({_rate(one.arrived or one.completed, pods, form=_BY_POD)})"
            for one in servers_of(server)
            if one.arrived or one.completed
        ]
    )


def latency_by_pod(server: InferenceServer, quantile: float, pods: Pods) -> str:
    found = []
    for one in servers_of(server):
        if one.latency:
            rates = f"sum by (le, {POD}) ({_rate(one.latency + '_bucket', pods, form=_BY_POD)})"
            found.append(f"{one.latency_ms:g} * histogram_quantile({quantile:g}, {rates})")
        if one.summary:
            series = _series(one.summary, pods, f'quantile="{quantile:g}"', _BY_POD)
            found.append(f"max by ({POD}) ({series}) * {one.latency_ms:g}")
    return _first(found)


def in_flight_ever(server: InferenceServer, pods: Pods) -> str:
    """Running and waiting of all pods that the target had, also of those that are gone."""
    ever = Pods(pods.namespace, (), pods.target)
    return _first(
        [
            f"(sum({_series(one.running, ever)}) + sum({_series(one.waiting, ever)}))"
            for one in servers_of(server)
            if one.running and one.waiting
        ]
    )


def arrival_rate(server: InferenceServer, pods: Pods) -> str:
    """Requests that came; where none counts those, requests that were completed and those that piled up."""
    return _first(
        [
            f"sum({_rate(one.arrived or one.completed, pods)})"
            for one in servers_of(server)
            if one.arrived or one.completed
        ]
    )


def service_time_s(server: InferenceServer, pods: Pods) -> str:
    found = []
    for one in servers_of(server):
        if one.service[0]:
            spent, done = (f"sum({_rate(name, pods, SERVICE_WINDOW_S)})" for name in one.service)
            unit = "" if one.service_unit_s == 1.0 else f" * {one.service_unit_s:g}"
            # Nothing done is no time; dividing by it would give NaN, which is no time either.
            found.append(f"({spent}{unit} / ({done} > 0))")
    return _first(found)


def gpu_utilization_by_pod(pods: Pods) -> str:
    return f"avg by ({POD}) ({_series('DCGM_FI_DEV_GPU_UTIL', pods, form=_BY_POD)})"


def gpu_memory_by_pod(pods: Pods) -> str:
    used, total, free = (
        f"sum by ({POD}) ({_series(f'DCGM_FI_DEV_FB_{name}', pods, form=_BY_POD)})"
        for name in ("USED", "TOTAL", "FREE")
    )
    return f"100 * {used} / ({total} or {used} + {free})"


POD = "gpuloom_pod"
_BY_POD = f'label_replace({{series}}, "{POD}", "$1", "{{label}}", "(.+)")'
_PLAIN = "{series}"


def _by_pod(names: Sequence[str], pods: Pods) -> str:
    return _first([f"sum by ({POD}) ({_series(name, pods, form=_BY_POD)})" for name in names if name])


def _series(name: str, pods: Pods, labels: str = "", form: str = _PLAIN) -> str:
    more = f",{labels}" if labels else ""
    own, exported = (f"{name}{{{selector}{more}}}" for selector in pods.selectors())
    own = form.format(series=own, label="pod")
    return f"({own} or {form.format(series=exported, label='exported_pod')})"


def _rate(name: str, pods: Pods, window_s: int = WINDOW_S, form: str = _PLAIN) -> str:
    own, exported = (f"rate({name}{{{selector}}}[{window_s}s])" for selector in pods.selectors())
    own = form.format(series=own, label="pod")
    return f"({own} or {form.format(series=exported, label='exported_pod')})"


def _first(queries: Sequence[str]) -> str:
    """The first that gives anything; empty if there is none."""
    return " or ".join(queries)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
