"""What nodes say about a request, in lines for a person. Only shows."""

from collections.abc import Iterable, Iterator, Sequence

from gpuloom.cli.output.tables import table_lines
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.explanation import Judgement, Offer
from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.ledger import NodeScore

_SCORE_COLUMNS = ("NODE", "TOTAL", "TOPOLOGY", "RESOURCE", "BALANCE")
_OFFER_COLUMNS = (*_SCORE_COLUMNS, "DEVICES")


def judgement_lines(judgement: Judgement) -> Iterator[str]:
    if judgement.offers:
        yield ""
        yield from offer_lines(judgement.offers)
    if judgement.reasons:
        yield ""
        yield "why not:"
        width = len(str(judgement.reasons[0].node_count))
        for entry in judgement.reasons:
            hope = "; room may come back" if entry.resolvable else ""
            yield f"  {entry.node_count:>{width}} {plural(entry.node_count, 'node')}: {entry.reason}{hope}"
    if judgement.near_misses:
        yield ""
        yield "nearest:"
        yield from (f"  {miss.node_name}: {miss.has}" for miss in judgement.near_misses)
    if judgement.changes:
        yield ""
        yield "would fit:"
        for change in judgement.changes:
            nodes = f"{change.node_count} {plural(change.node_count, 'node')}"
            yield f"  {change.change} ({nodes}, best {change.node_name})"


def offer_lines(offers: Sequence[Offer]) -> Iterator[str]:
    rows = [_OFFER_COLUMNS, *(_offer_row(offer) for offer in offers)]
    yield from table_lines(rows)


def score_lines(scores: Sequence[NodeScore]) -> Iterator[str]:
    # Without advice its column would be noise.
    hinted = any(score.hint for score in scores)
    rows = [(score.node_name, *_score_cells(score), f"{score.hint:+.1f}") for score in scores]
    table = [(*_SCORE_COLUMNS, "HINT"), *rows]
    yield from table_lines(table if hinted else [row[:-1] for row in table])


def device_texts(devices: Iterable[AllocatedDevice]) -> str:
    return ", ".join(map(_device_text, devices))


def plural(count: int, noun: str) -> str:
    return noun if count == 1 else f"{noun}s"


def _offer_row(offer: Offer) -> tuple[str, ...]:
    return offer.node_name, *_score_cells(offer), device_texts(offer.devices)


def _score_cells(scored: Offer | NodeScore) -> tuple[str, ...]:
    return tuple(f"{score:.1f}" for score in (scored.total, scored.topology, scored.resource, scored.balance))


def _device_text(item: AllocatedDevice) -> str:
    mig = item.device.mig
    if mig is not None:
        return f"{item.device.gpu_uuid} {mig.profile} at {mig.start}"
    if item.milli < MILLI_PER_GPU:
        return f"{item.device.gpu_uuid} {item.milli} milli, {item.memory_mib} MiB"
    return item.device.gpu_uuid
