"""Asks Compute Engine's metadata service whether this machine is being preempted."""

from gpuloom.model.spot import SpotNotice
from services.node_agent.spot.core.answers.gcp import preemption_from
from services.node_agent.spot.core.problem import MetadataError, Problem
from services.node_agent.spot.metadata import Metadata

PREEMPTED_PATH = "/computeMetadata/v1/instance/preempted"
FLAVOR_HEADER = "Metadata-Flavor"
FLAVOR = "Google"


class GcpNotices:
    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    async def read(self) -> SpotNotice | None:
        answer = await self._metadata.get(PREEMPTED_PATH, {FLAVOR_HEADER: FLAVOR})
        # Google marks every answer, so that another's service at the same address is not believed.
        if answer.headers.get(FLAVOR_HEADER) != FLAVOR:
            raise MetadataError(Problem.MALFORMED, "the answer does not come from Google's metadata service")
        return preemption_from(answer.content())
