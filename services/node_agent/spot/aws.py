"""Asks EC2's metadata service, always by version 2: a token first, then the questions.

Version 1, which needs no token, is never used: many machines forbid it.
"""

from gpuloom.model.spot import SpotNotice
from gpuloom.runtime.clock import Clock
from services.node_agent.spot.core.answers.aws import interruption_from, rebalance_from, token_from
from services.node_agent.spot.core.problem import MetadataError, Problem
from services.node_agent.spot.metadata import Answer, Metadata

TOKEN_PATH = "/latest/api/token"  # noqa: S105 - an address
INSTANCE_ACTION_PATH = "/latest/meta-data/spot/instance-action"
REBALANCE_PATH = "/latest/meta-data/events/recommendations/rebalance"
TOKEN_HEADER = "X-aws-ec2-metadata-token"  # noqa: S105 - the name of a header
TOKEN_TTL_HEADER = "X-aws-ec2-metadata-token-ttl-seconds"  # noqa: S105 - the name of a header
# The longest that EC2 gives.
TOKEN_TTL_S = 21600
RENEW_BEFORE_END_S = 300.0

_HOP_LIMIT_HINT = (
    "no token from the metadata service; if the agent is in a container with a network of its own, raise the "
    "instance's HttpPutResponseHopLimit to 2 or run the agent with hostNetwork"
)


class AwsNotices:
    def __init__(self, metadata: Metadata, clock: Clock) -> None:
        self._metadata = metadata
        self._clock = clock
        self._token = ""
        self._renew_at_s = 0.0

    async def read(self) -> SpotNotice | None:
        """An interruption outranks a rebalance recommendation, which is only a hint."""
        action = await self._get(INSTANCE_ACTION_PATH)
        if action is not None:
            return interruption_from(action)
        hint = await self._get(REBALANCE_PATH)
        return None if hint is None else rebalance_from(hint)

    async def _get(self, path: str) -> bytes | None:
        """None: there is no such item now."""
        answer = await self._get_with_token(path)
        if answer.status == 401:
            # Tokens also end early, for instance when a machine wakes from hibernation.
            self._token = ""
            answer = await self._get_with_token(path)
        return None if answer.status == 404 else answer.content()

    async def _get_with_token(self, path: str) -> Answer:
        if not self._token or self._clock.monotonic() >= self._renew_at_s:
            await self._renew_token()
        return await self._metadata.get(path, {TOKEN_HEADER: self._token})

    async def _renew_token(self) -> None:
        asked_at_s = self._clock.monotonic()
        try:
            answer = await self._metadata.put(TOKEN_PATH, {TOKEN_TTL_HEADER: str(TOKEN_TTL_S)})
        except MetadataError as error:
            # Beyond its hop limit the token's packets are dropped: nothing comes, not even a refusal.
            if error.problem is Problem.SLOW:
                raise MetadataError(Problem.SLOW, _HOP_LIMIT_HINT) from None
            raise
        self._token = token_from(answer.content())
        self._renew_at_s = asked_at_s + TOKEN_TTL_S - RENEW_BEFORE_END_S
