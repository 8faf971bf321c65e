"""Prometheus' HTTP API: queries with deadlines and bounds, and no zero where nothing is known.

An answer holds the series that Prometheus has; what is absent is not in it, and NaN and infinities are left
out, so a caller that finds nothing has to say what that means. `max_age_s` bounds how old a sample may be:
Prometheus itself would answer with one that is up to five minutes old as if it were new. A server that can't
bound it (Prometheus before 2.43) is refused.
"""

import asyncio
import math
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson

from gpuloom.errors import (
    DeadlineError,
    InvalidRequestError,
    NotAllowedError,
    NotReadyError,
    TooLargeError,
    UnavailableError,
)
from gpuloom.runtime.config import setting
from gpuloom.runtime.parsers import existing_file, seconds, text

MAX_ANSWER_BYTES = 64 * 1024 * 1024
MAX_POINTS = 11_000
"""Prometheus refuses a range query with more points a series."""
MAX_QUERY = 262_144
"""A built-in query names a hundred pods, as often as it has series."""

Labels = Mapping[str, str]


@dataclass(frozen=True)
class PrometheusConfig:
    url: str | None = setting(
        "GPULOOM_PROMETHEUS_URL",
        default=None,
        parse=text,
        help="Where Prometheus (or Thanos, Mimir, Cortex) answers queries, for example http://prometheus:9090",
    )
    token_file: Path | None = setting(
        "GPULOOM_PROMETHEUS_TOKEN_FILE",
        default=None,
        parse=existing_file,
        help="File with a bearer token, read again with every query",
    )
    user: str | None = setting(
        "GPULOOM_PROMETHEUS_USER", default=None, parse=text, help="User name for basic authentication"
    )
    password_file: Path | None = setting(
        "GPULOOM_PROMETHEUS_PASSWORD_FILE",
        default=None,
        parse=existing_file,
        help="File with the password for basic authentication, read again with every query",
    )
    ca_file: Path | None = setting(
        "GPULOOM_PROMETHEUS_CA_FILE",
        default=None,
        parse=existing_file,
        help="Authority of its certificate; by default those that the system trusts",
    )
    timeout_s: float = setting(
        "GPULOOM_PROMETHEUS_TIMEOUT", default=10.0, parse=seconds, help="How long a query may take"
    )

    def problems(self) -> Iterator[str]:
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            yield "GPULOOM_PROMETHEUS_URL must begin with http:// or https://"
        if (self.user is None) != (self.password_file is None):
            yield "GPULOOM_PROMETHEUS_USER and GPULOOM_PROMETHEUS_PASSWORD_FILE go together"
        if self.user is not None and self.token_file is not None:
            yield "GPULOOM_PROMETHEUS_TOKEN_FILE and GPULOOM_PROMETHEUS_USER exclude each other"


@dataclass(frozen=True, slots=True)
class Sample:
    """One series at one moment."""

    labels: Labels
    value: float


@dataclass(frozen=True, slots=True)
class Series:
    """One series over time, oldest first; steps without a sample are not in it."""

    labels: Labels
    points: tuple[tuple[datetime, float], ...]


@dataclass(frozen=True, slots=True)
class Range:
    start: datetime
    end: datetime
    step_s: float

    def points(self) -> int:
        return int((self.end - self.start).total_seconds() // self.step_s) + 1


class PrometheusClient:
    """Use it as an async context manager."""

    def __init__(self, config: PrometheusConfig) -> None:
        if config.url is None:
            raise ValueError("a client needs GPULOOM_PROMETHEUS_URL")
        self._config = config
        self._base = config.url.rstrip("/")
        self._session: aiohttp.ClientSession | None = None
        self._bounds_age = False

    async def __aenter__(self) -> Self:
        tls = ssl.create_default_context(cafile=self._config.ca_file)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls, limit=16),
            timeout=aiohttp.ClientTimeout(total=self._config.timeout_s),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def instant(
        self, query: str, *, max_age_s: float, at: datetime | None = None
    ) -> tuple[Sample, ...]:
        """The series that this query gives now, or at that time, none of them older than that."""
        await self._check_server()
        parameters = {"query": query, "lookback_delta": _duration(max_age_s)}
        if at is not None:
            parameters["time"] = _time(at)
        return tuple(_samples(await self._ask("query", parameters)))

    async def value(self, query: str, *, max_age_s: float, at: datetime | None = None) -> float | None:
        """The only value of a query that gives one series; None if it gives nothing usable.

        Raise InvalidRequestError if it gives several: taking one of them would be a guess.
        """
        found = await self.instant(query, max_age_s=max_age_s, at=at)
        if len(found) > 1:
            raise InvalidRequestError(
                f"the query gives {len(found)} series where one is needed; aggregate it, for example by sum()"
            )
        return found[0].value if found else None

    async def range(self, query: str, over: Range, *, max_age_s: float) -> tuple[Series, ...]:
        if over.step_s <= 0 or over.end < over.start:
            raise InvalidRequestError("a range goes from an earlier to a later time, in steps above 0 s")
        if over.points() > MAX_POINTS:
            raise InvalidRequestError(
                f"a range has at most {MAX_POINTS} steps, not {over.points()}; take longer ones"
            )
        await self._check_server()
        parameters = {
            "query": query,
            "start": _time(over.start),
            "end": _time(over.end),
            "step": f"{over.step_s:.3f}",
            "lookback_delta": _duration(max_age_s),
        }
        return tuple(_series(await self._ask("query_range", parameters)))

    async def ping(self) -> None:
        """Raise if Prometheus does not answer queries."""
        await self._ask("query", {"query": "vector(1)"})

    async def _check_server(self) -> None:
        """Whether it heeds a bound of age shows in its refusing one that makes no sense. Asked once."""
        if self._bounds_age:
            return
        try:
            await self._ask("query", {"query": "vector(1)", "lookback_delta": "nonsense"})
        except InvalidRequestError:
            self._bounds_age = True
        else:
            raise NotReadyError(
                f"what answers at {self._base} can't bound the age of samples; use Prometheus 2.43 or newer"
            )

    async def _ask(self, path: str, parameters: Mapping[str, str]) -> dict[str, Any]:
        if self._session is None:
            raise NotReadyError("the client is not open")
        if len(parameters["query"]) > MAX_QUERY:
            raise InvalidRequestError(f"a query has at most {MAX_QUERY} characters")
        url = f"{self._base}/api/v1/{path}"
        timeout = {"timeout": _duration(self._config.timeout_s)}
        try:
            async with self._session.post(
                url, data={**parameters, **timeout}, headers=self._headers(), allow_redirects=False
            ) as answer:
                body = await answer.content.read(MAX_ANSWER_BYTES + 1)
                # `read` gives what is there; the rest of a large answer comes in further parts.
                while not answer.content.at_eof() and len(body) <= MAX_ANSWER_BYTES:
                    body += await answer.content.read(MAX_ANSWER_BYTES + 1 - len(body))
                return _data(answer.status, body)
        except TimeoutError as error:
            raise DeadlineError(f"Prometheus did not answer within {self._config.timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError) as error:
            raise UnavailableError(f"Prometheus can't be reached at {self._base}") from error

    def _headers(self) -> dict[str, str]:
        config = self._config
        if config.token_file is not None:
            return {"Authorization": f"Bearer {_secret(config.token_file)}"}
        if config.user is not None and config.password_file is not None:
            login = aiohttp.BasicAuth(config.user, _secret(config.password_file), "utf-8")
            return {"Authorization": login.encode()}
        return {}


def _data(status: int, body: bytes) -> dict[str, Any]:
    if len(body) > MAX_ANSWER_BYTES:
        raise TooLargeError(f"the answer has more than {MAX_ANSWER_BYTES} bytes; aggregate the query")
    if status in (401, 403):
        raise NotAllowedError(f"Prometheus refused our credentials ({status})")
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise UnavailableError(f"what answered with {status} is no Prometheus") from None
    if not isinstance(answer, dict):
        raise UnavailableError(f"what answered with {status} is no Prometheus")
    if answer.get("status") == "success" and isinstance(answer.get("data"), dict):
        data: dict[str, Any] = answer["data"]
        return data
    problem = str(answer.get("error", "no reason given"))[:500]
    match answer.get("errorType"):
        case "bad_data":
            raise InvalidRequestError(f"Prometheus refused the query: {problem}")
        case "timeout" | "canceled":
            raise DeadlineError(f"the query took too long: {problem}")
        case _:
            raise UnavailableError(f"Prometheus failed ({status}): {problem}")


def _samples(data: dict[str, Any]) -> Iterator[Sample]:
    if data.get("resultType") in ("scalar", "string"):
        value = _point(data.get("result"))[1]
        if value is not None:
            yield Sample({}, value)
        return
    for item in _results(data, "vector"):
        _refuse_histogram(item, "value", "histogram")
        value = _point(item.get("value"))[1]
        if value is not None:
            yield Sample(_labels(item), value)


def _series(data: dict[str, Any]) -> Iterator[Series]:
    for item in _results(data, "matrix"):
        _refuse_histogram(item, "values", "histograms")
        pairs = item.get("values")
        if not isinstance(pairs, list):
            raise _misshapen()
        known = tuple((at, value) for at, value in map(_point, pairs) if value is not None)
        if known:
            yield Series(_labels(item), known)


def _results(data: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    results = data.get("result")
    if data.get("resultType") != kind or not isinstance(results, list):
        raise InvalidRequestError(f"the query gives a {str(data.get('resultType'))[:32]}, not a {kind}")
    if not all(isinstance(item, dict) for item in results):
        raise _misshapen()
    return results


def _refuse_histogram(item: Mapping[str, Any], own: str, other: str) -> None:
    """A series of native histograms has no values."""
    if own not in item and other in item:
        raise InvalidRequestError(
            "the query gives histograms where numbers are needed; take a part of them, for example by "
            "histogram_quantile()"
        )


def _labels(item: Mapping[str, Any]) -> Labels:
    labels = item.get("metric") or {}
    if not isinstance(labels, dict):
        raise _misshapen()
    return labels


def _point(pair: Any) -> tuple[datetime, float | None]:
    """Values come as texts; None for one that is no number."""
    try:
        moment, told = pair
        value = float(told)
        return datetime.fromtimestamp(moment, UTC), value if math.isfinite(value) else None
    except (TypeError, ValueError, OverflowError, OSError):
        raise _misshapen() from None


def _misshapen() -> UnavailableError:
    return UnavailableError("what answered is no Prometheus: its results have another shape")


def _duration(amount_s: float) -> str:
    """Prometheus takes whole milliseconds."""
    return f"{max(1, round(amount_s * 1000))}ms"


def _time(moment: datetime) -> str:
    return f"{moment.timestamp():.3f}"


def _secret(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise NotReadyError(f"{path} can't be read") from error
