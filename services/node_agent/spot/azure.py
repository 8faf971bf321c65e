"""Asks Azure's metadata service for this machine's scheduled events. Approves none: that would start them."""

from gpuloom.model.spot import SpotNotice
from services.node_agent.spot.core.answers.azure import machine_name_from, notice_from
from services.node_agent.spot.core.problem import MetadataError, Problem
from services.node_agent.spot.metadata import Metadata

EVENTS_PATH = "/metadata/scheduledevents?api-version=2020-07-01"
NAME_PATH = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
HEADERS = {"Metadata": "true"}


class AzureNotices:
    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._machine_name = ""
        self._events_told = False

    async def read(self) -> SpotNotice | None:
        """Until the machine's name is known no event is believed: the whole scale set is told of each."""
        if not self._machine_name:
            self._machine_name = machine_name_from(await self._get(NAME_PATH))
        try:
            events = await self._get(EVENTS_PATH)
        except MetadataError as error:
            if error.problem is Problem.SLOW and not self._events_told:
                raise MetadataError(Problem.SLOW, f"{error}; the first answer may take two minutes") from None
            raise
        self._events_told = True
        return notice_from(events, self._machine_name)

    async def _get(self, path: str) -> bytes:
        return (await self._metadata.get(path, HEADERS)).content()
