"""`gpuloom explain pod`: why a pod is where it is, or why it is nowhere yet. Only asks and shows."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from gpuloom.cli.connection.endpoints import (
    DEFAULT_TIMEOUT_S,
    DirectoryOption,
    ExtenderOption,
    TimeoutOption,
    ask,
    find_endpoint,
)
from gpuloom.cli.output import exits
from gpuloom.cli.output.forms import Output, OutputOption, show
from gpuloom.cli.scheduling.judgement_text import device_texts, judgement_lines, plural, score_lines
from gpuloom.errors import InvalidRequestError
from gpuloom.model.explanation import Explanation, PodStanding
from gpuloom.model.node import PodRef

DEFAULT_NAMESPACE = "default"

_IN_VAIN = (PodStanding.REFUSED, PodStanding.OTHER_SCHEDULER)


def register(app: typer.Typer) -> None:
    group = typer.Typer(rich_markup_mode=None)
    group.callback()(_about)
    group.command("pod", short_help="Say why a pod waits or where it is.")(explain_pod)
    app.add_typer(group, name="explain")


def _about() -> None:
    """Say why a pod waits, or where it is."""


def explain_pod(
    pod: Annotated[str, typer.Argument(metavar="NAMESPACE/NAME", help="A name alone is of default.")],
    extender: ExtenderOption = "",
    directory: DirectoryOption = Path("run"),
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> None:
    """Say where a pod is, where it would go, or why no node takes it and what would help.

    Exits 0 if it has a node or one would take it, 1 if not or if there is no such pod, 3 if the extender
    can't be reached.
    """
    ref = parse_pod(pod)
    endpoint = find_endpoint("scheduler_extender", extender, directory, os.environ)
    from gpuloom.clients.extender import explain  # noqa: PLC0415 - brings gRPC along

    explanation = ask(endpoint, lambda channel: explain(channel, ref, timeout))
    show(output, explanation, lambda: explanation_lines(explanation))
    raise typer.Exit(exits.NO if explanation.standing in _IN_VAIN else exits.FINE)


def parse_pod(text: str) -> PodRef:
    namespace, slash, name = text.partition("/")
    if not slash:
        namespace, name = DEFAULT_NAMESPACE, text
    if not namespace or not name or "/" in name:
        raise InvalidRequestError(f"name a pod as NAMESPACE/NAME, not {exits.one_line(text)}")
    return PodRef(namespace, name, "")


def explanation_lines(explanation: Explanation) -> Iterator[str]:
    yield f"{explanation.pod}: {_standing(explanation)}"
    if explanation.request:
        yield f"asks for {explanation.request}"
    if explanation.devices:
        yield f"has {device_texts(explanation.devices)}"
    if explanation.keeping:
        yield f"kept: {explanation.keeping}"
    if explanation.problem:
        yield f"problem: {explanation.problem}"
    for warning in explanation.warnings:
        yield f"warning: {warning}"
    if explanation.quarantine is not None:
        notice = explanation.quarantine
        whose = "all pods of its controller" if notice.whole_controller else "this pod"
        failures = f"{notice.failures} failed {plural(notice.failures, 'bind')} in a row"
        yield f"quarantine: {whose}, until {notice.until:%Y-%m-%d %H:%M:%S} UTC, after {failures}"
    if explanation.judgement is not None:
        yield from judgement_lines(explanation.judgement)
    yield from _comparison_lines(explanation)
    if explanation.decisions:
        yield ""
        yield "last decisions:"
        for decision in explanation.decisions:
            where = f" on {decision.node_name}" if decision.node_name else ""
            why = f": {decision.reason}" if decision.reason else ""
            yield f"  {decision.time:%H:%M:%S} UTC {decision.verdict}{where}{why}"
    if explanation.note:
        yield ""
        yield explanation.note


def _comparison_lines(explanation: Explanation) -> Iterator[str]:
    """Of a bound pod: how its node was scored, and the nodes it was preferred to."""
    chosen = [decision.scores for decision in explanation.decisions if decision.scores]
    if explanation.standing is PodStanding.BOUND and chosen:
        yield ""
        yield f"why {explanation.node_name}: the best score when it was chosen"
        yield from score_lines(chosen[-1])


def _standing(explanation: Explanation) -> str:
    match explanation.standing:
        case PodStanding.UNMANAGED:
            return "asks for no GPU that GPULoom manages"
        case PodStanding.BOUND:
            return f"bound to {explanation.node_name}"
        case PodStanding.ENDED:
            return f"ended on {explanation.node_name}" if explanation.node_name else "ended"
        case PodStanding.OTHER_SCHEDULER:
            return "waits for a scheduler that does not ask GPULoom"
    return f"waits; {_prospect(explanation)}"


def _prospect(explanation: Explanation) -> str:
    judgement = explanation.judgement
    if explanation.quarantine is not None:
        return "its binds keep failing"
    if judgement is None:
        return "no node may have it"
    if judgement.fitting_count:
        return f"{judgement.fitting_count} of {judgement.node_count} nodes would take it"
    return f"none of {judgement.node_count} nodes would take it"
