"""`gpuloom autoscaler status|plan|history|policy|inference`: nodes and replicas, and why. Only shows."""

import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from gpuloom.cli.connection.endpoints import (
    DEFAULT_TIMEOUT_S,
    DirectoryOption,
    TimeoutOption,
    address_option,
    ask,
    find_endpoint,
)
from gpuloom.cli.output.forms import Output, OutputOption, WatchOption, follow, show
from gpuloom.cli.output.tables import table_lines
from gpuloom.model.autoscaling import (
    AutoscalerStanding,
    InferenceStanding,
    PolicyPlan,
    PolicyStanding,
    ScalingRecord,
)

if TYPE_CHECKING:
    from gpuloom.rpc.channel import RpcChannel

Answer = TypeVar("Answer")

AutoscalerOption = Annotated[str, address_option("autoscaler")]
_Limit = Annotated[int, typer.Option("--limit", min=1, max=500, help="At most so many actions.")]
_NANO = 1_000_000_000


def register(app: typer.Typer) -> None:
    commands = typer.Typer(help="What nodes are bought and drained, and why.", rich_markup_mode=None)
    commands.command("status", short_help="Policies and node claims.")(status)
    commands.command("plan", short_help="What would be bought or drained now, and what was rejected.")(plan)
    commands.command("history", short_help="The newest scaling actions.")(history)
    commands.command("policy", short_help="Policies with their pools, limits and cooldowns.")(policy)
    commands.command("inference", short_help="Inference services: replicas, what is wanted, and why.")(
        inference
    )
    app.add_typer(commands, name="autoscaler")


def status(
    autoscaler: AutoscalerOption = "",
    directory: DirectoryOption = Path("run"),
    watch: WatchOption = False,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> None:
    """Show policies and node claims. Exits 3 if the autoscaler can't be reached."""
    from gpuloom.clients.autoscaler import standing  # noqa: PLC0415 - brings gRPC along

    def found() -> tuple[Any, Iterator[str]]:
        now = _asked(autoscaler, directory, lambda channel: standing(channel, timeout))
        return now, status_lines(now, wide=output is Output.WIDE)

    follow(found, output, watch=watch)


def plan(
    autoscaler: AutoscalerOption = "",
    directory: DirectoryOption = Path("run"),
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> None:
    """Show which pods need which nodes, at what price, and what was rejected. Changes nothing."""
    from gpuloom.clients.autoscaler import plans  # noqa: PLC0415 - brings gRPC along

    found = _asked(autoscaler, directory, lambda channel: plans(channel, timeout))
    _show(found, output, plan_lines(found))


def history(
    limit: _Limit = 20,
    autoscaler: AutoscalerOption = "",
    directory: DirectoryOption = Path("run"),
    watch: WatchOption = False,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> None:
    """Show what was bought and drained lately, newest first."""
    from gpuloom.clients.autoscaler import actions  # noqa: PLC0415 - brings gRPC along

    def found() -> tuple[Any, Iterator[str]]:
        now = _asked(autoscaler, directory, lambda channel: actions(channel, limit, timeout))
        return now, history_lines(now, wide=output is Output.WIDE)

    follow(found, output, watch=watch)


def policy(
    autoscaler: AutoscalerOption = "",
    directory: DirectoryOption = Path("run"),
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> None:
    """Show every policy with its pools, and what keeps it from acting."""
    from gpuloom.clients.autoscaler import standing  # noqa: PLC0415 - brings gRPC along

    found = _asked(autoscaler, directory, lambda channel: standing(channel, timeout))
    _show(found.policies, output, policy_lines(found.policies))


def inference(
    autoscaler: AutoscalerOption = "",
    directory: DirectoryOption = Path("run"),
    watch: WatchOption = False,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> None:
    """Show how inference services are scaled, what was measured, and why they stand so."""
    from gpuloom.clients.autoscaler import inference as asked  # noqa: PLC0415 - brings gRPC along

    def found() -> tuple[Any, Iterator[str]]:
        now = _asked(autoscaler, directory, lambda channel: asked(channel, timeout))
        return now, inference_lines(now, wide=output is Output.WIDE)

    follow(found, output, watch=watch)


def status_lines(found: AutoscalerStanding, *, wide: bool = False) -> Iterator[str]:
    header = ("POLICY", "PROVIDER", "READY", "DESIRED", "MAX", "PENDING", "UTIL", "PREDICTED", "MESSAGE")
    rows = [
        (
            one.name,
            one.provider,
            str(one.ready_nodes),
            str(one.desired_nodes),
            str(one.max_nodes),
            str(one.pending_pods),
            _percent(one.utilization),
            _percent(one.predicted_utilization),
            one.message,
        )
        for one in found.policies
    ]
    right = ("READY", "DESIRED", "MAX", "PENDING", "UTIL", "PREDICTED")
    yield from table_lines([header, *rows], right, () if wide else ("PREDICTED",))
    yield ""
    titles = ("CLAIM", "POOL", "TYPE", "ZONE", "TIER", "GPUS", "STATE", "NODE", "USD/H", "AGE", "MESSAGE")
    claims = [
        (
            one.name,
            one.pool,
            one.instance_type,
            one.zone or "-",
            one.capacity_type,
            str(one.gpus),
            one.state,
            one.node_name or "-",
            _usd(one.nano_usd_per_hour),
            _age(one.requested),
            one.message or "-",
        )
        for one in found.claims
        if one.state != "Gone"
    ]
    yield from table_lines([titles, *claims], ("GPUS", "USD/H", "AGE"), () if wide else ("MESSAGE",))
    yield f"interruptions per spot node in 24 h: {found.interruption_rate:.0%}"


def plan_lines(found: Sequence[PolicyPlan]) -> Iterator[str]:
    for one in found:
        yield f"{one.policy}: {one.scale_up_reason or 'no nodes are wanted'}"
        if one.machines:
            header = ("POOL", "TYPE", "ZONE", "TIER", "USD/H", "PODS")
            rows = [
                (
                    machine.pool,
                    machine.instance_type,
                    machine.zone or "-",
                    machine.capacity_type,
                    _usd(machine.nano_usd_per_hour) + ("~" if machine.price_estimated else ""),
                    ", ".join(map(str, machine.pods)) or "-",
                )
                for machine in one.machines
            ]
            yield from table_lines([header, *rows], right=("USD/H",))
        if one.scale_up_held:
            yield f"  not now: {one.scale_up_held}"
        for pod, reason in one.unplaced:
            yield f"  no node helps {pod}: {reason}"
        for offering, reason in one.rejected:
            yield f"  rejected {offering}: {reason}"
        if one.drained_claim or one.scale_down_reason:
            yield f"  scale down {one.drained_claim or 'nothing'}: {one.scale_down_reason}"


def history_lines(found: Sequence[ScalingRecord], *, wide: bool = False) -> Iterator[str]:
    header = ("TIME", "POLICY", "ACTION", "POOL", "NODES", "USD/H", "CLAIMS", "REASON")
    rows = [
        (
            one.time.strftime("%Y-%m-%d %H:%M:%S"),
            one.policy,
            one.type,
            one.pool,
            str(one.count),
            _usd(one.nano_usd_per_hour),
            ", ".join(one.claims) or "-",
            one.reason,
        )
        for one in found
    ]
    yield from table_lines([header, *rows], ("NODES", "USD/H"), () if wide else ("CLAIMS",))


def policy_lines(found: Sequence[PolicyStanding]) -> Iterator[str]:
    header = ("POLICY", "POOL", "NODES", "MIN", "MAX", "PRIORITY", "ACTS", "UP IN", "DOWN IN", "PROBLEM")
    rows = [
        (
            one.name,
            pool.name,
            str(pool.nodes),
            str(pool.min_nodes),
            "-" if pool.max_nodes is None else str(pool.max_nodes),
            str(pool.priority),
            "no" if not one.enabled else "dry run" if one.dry_run else "yes",
            f"{one.scale_up_wait_s:.0f}s",
            f"{one.scale_down_wait_s:.0f}s",
            pool.problem or "-",
        )
        for one in found
        for pool in one.pools
    ]
    yield from table_lines([header, *rows], right=("NODES", "MIN", "MAX", "PRIORITY", "UP IN", "DOWN IN"))


def inference_lines(found: Sequence[InferenceStanding], *, wide: bool = False) -> Iterator[str]:
    extra = ("STARTING", "COLD-START", "LAST-SCALE")
    right = ("MIN", "MAX", "NOW", "READY", "DESIRED")
    header = ("POLICY", "TARGET", "MODE", *right, "METRICS", *extra, "MESSAGE")
    rows = [
        (
            f"{one.namespace}/{one.name}",
            one.target or "-",
            one.mode or "-",
            str(one.min_replicas),
            str(one.max_replicas),
            _count(one.current_replicas),
            str(one.ready_replicas),
            _count(one.desired_replicas),
            ", ".join(f"{name} {_number(value)}/{target:g}" for name, target, value in one.metrics) or "-",
            str(one.starting_replicas),
            "-" if one.cold_start_s is None else f"{one.cold_start_s:.0f}s",
            "-" if one.last_scale is None else f"{_age(one.last_scale)} ago",
            one.message,
        )
        for one in found
    ]
    yield from table_lines([header, *rows], right, () if wide else extra)


def _count(number: int | None) -> str:
    return "-" if number is None else str(number)


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.4g}"


def _asked(given: str, directory: Path, question: "Callable[[RpcChannel], Awaitable[Answer]]") -> Answer:
    return ask(find_endpoint("autoscaler", given, directory, os.environ), question)


def _show(found: Any, output: Output, lines: Iterator[str]) -> None:
    show(output, found, lambda: lines)


def _usd(nano: int | None) -> str:
    return "-" if nano is None else f"{nano / _NANO:.2f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _age(since: datetime | None) -> str:
    if since is None:
        return "-"
    seconds = max(0.0, (datetime.now(UTC) - since).total_seconds())
    return f"{seconds:.0f}s" if seconds < 120 else f"{seconds / 60:.0f}m"
