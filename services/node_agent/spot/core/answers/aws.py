"""What EC2's metadata service says, as notices. Pure."""

from gpuloom.model.spot import SpotNotice, SpotNoticeKind
from services.node_agent.spot.core.answers.document import (
    ascii_text,
    is_word,
    iso_time,
    json_object,
    malformed,
)
from services.node_agent.spot.core.clouds import Cloud

_LONGEST_TOKEN = 1024


def token_from(body: bytes) -> str:
    return ascii_text(body, _LONGEST_TOKEN)


def interruption_from(body: bytes) -> SpotNotice:
    """`spot/instance-action`. Stopping and hibernating take the GPUs away as surely as terminating does."""
    document = json_object(body)
    action = document.get("action")
    if not is_word(action):
        raise malformed("the instance action has no action")
    return SpotNotice(
        SpotNoticeKind.INTERRUPTION, iso_time(document.get("time")), Cloud.AWS, str(action).lower()
    )


def rebalance_from(body: bytes) -> SpotNotice:
    """`events/recommendations/rebalance`."""
    document = json_object(body)
    if "noticeTime" not in document:
        raise malformed("the rebalance recommendation has no noticeTime")
    return SpotNotice(SpotNoticeKind.REBALANCE, iso_time(document["noticeTime"]), Cloud.AWS)
