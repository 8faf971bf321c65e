"""The team rules as the operator's file has them now. A file that can't be read leaves the last rules."""

import asyncio
import logging
from pathlib import Path

from gpuloom.errors import InvalidRequestError
from gpuloom.runtime.clock import Clock
from services.cost_engine.core.teams import TeamRule, parse_rules

_log = logging.getLogger(__name__)

CHECK_S = 10.0
MAX_BYTES = 1024 * 1024


class TeamRules:
    def __init__(self, path: Path | None, clock: Clock) -> None:
        """Raise InvalidRequestError if there is a file that makes no rules."""
        self._path = path
        self._clock = clock
        self._text = "" if path is None else read_text(path)
        try:
            self.rules: tuple[TeamRule, ...] = parse_rules(self._text)
        except ValueError as error:
            raise InvalidRequestError(f"{path}: {error}") from None

    async def run(self) -> None:
        while True:
            await self._clock.sleep(CHECK_S)
            if self._path is None:
                continue
            try:
                text = await asyncio.to_thread(read_text, self._path)
                if text != self._text:
                    self.rules = parse_rules(text)
                    self._text = text
                    _log.info("team rules read", extra={"rules": len(self.rules)})
            except (ValueError, InvalidRequestError) as error:
                _log.warning("team rules not read, the last ones hold", extra={"reason": str(error)})


def read_text(path: Path) -> str:
    """Raise InvalidRequestError if it can't be read or is too large."""
    try:
        with path.open("rb") as file:
            body = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidRequestError(f"can't read {path}: {error.strerror}") from error
    if len(body) > MAX_BYTES:
        raise InvalidRequestError(f"{path} is larger than {MAX_BYTES} bytes")
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise InvalidRequestError(f"{path} is not UTF-8") from None
