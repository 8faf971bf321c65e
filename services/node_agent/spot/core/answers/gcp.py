"""What Compute Engine's metadata service says, as notices. Pure."""

from gpuloom.model.spot import SpotNotice, SpotNoticeKind
from services.node_agent.spot.core.answers.document import malformed
from services.node_agent.spot.core.clouds import Cloud


def preemption_from(body: bytes) -> SpotNotice | None:
    """`instance/preempted`.

    Google says that the machine ends within 30 s, not when they began, so the time is not known. A guess from
    this machine's clock would look like Google's word to whoever reads it on another machine.
    """
    match body.strip().upper():
        case b"TRUE":
            return SpotNotice(SpotNoticeKind.INTERRUPTION, None, Cloud.GCP, "preempt")
        case b"FALSE":
            return None
    raise malformed("preempted is neither TRUE nor FALSE")
