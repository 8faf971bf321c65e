"""Lists: which objects, in which order, in pages of one consistent snapshot.

A continue token holds the snapshot's version and the last key; the past state is rebuilt from history, so
the server keeps nothing for a reader who never comes back. A token that is too old is answered with 410.
"""

import base64
from collections.abc import Iterable
from dataclasses import dataclass

import orjson

from gpuloom.sim.kubeapi.resources import Resource
from gpuloom.sim.kubeapi.selectors import EVERYTHING, Selector
from gpuloom.sim.kubeapi.status import ApiError, bad_request
from gpuloom.sim.kubeapi.storage.collection import Entry, Key
from gpuloom.sim.kubeapi.storage.database import Database


@dataclass(frozen=True, slots=True)
class ListQuery:
    """What to list. `limit` 0 means all; `at_version` asks for the state at exactly that version."""

    namespace: str = ""
    selector: Selector = EVERYTHING
    limit: int = 0
    continue_token: str = ""
    at_version: int | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Entries in key order, the version they were read at, and where to go on (empty: nowhere)."""

    entries: list[Entry]
    version: int
    continue_token: str = ""
    remaining: int | None = None


def list_page(database: Database, resource: Resource, query: ListQuery) -> Page:
    if query.continue_token:
        version, after = _decode(query.continue_token)
        return _past_page(database, resource, query, version, after)
    if query.at_version is not None:
        return _past_page(database, resource, query, query.at_version, None)
    found = database.collection(resource).entries(query.namespace, query.selector)
    return _cut(query, _matching(query, found), database.version)


def _past_page(
    database: Database, resource: Resource, query: ListQuery, version: int, after: Key | None
) -> Page:
    database.require_known(version)
    try:
        entries = database.collection(resource).entries_at(version, query.namespace)
    except ApiError as error:
        if error.code != 410 or after is None:
            raise
        raise ApiError(
            410, "the provided continue parameter is too old to display a consistent list result; list again"
        ) from error
    remaining = [entry for entry in _matching(query, entries) if after is None or entry.key > after]
    return _cut(query, remaining, version)


def _matching(query: ListQuery, entries: Iterable[Entry]) -> list[Entry]:
    if query.selector == EVERYTHING:
        return sorted(entries, key=_key)
    return sorted((entry for entry in entries if query.selector.matches(entry.obj)), key=_key)


def _cut(query: ListQuery, entries: list[Entry], version: int) -> Page:
    if not query.limit or len(entries) <= query.limit:
        return Page(entries, version)
    page = entries[: query.limit]
    # With a selector the real server does not know how many are left either.
    remaining = len(entries) - len(page) if query.selector == EVERYTHING else None
    return Page(page, version, _encode(version, page[-1].key), remaining)


def _key(entry: Entry) -> Key:
    return entry.key


def _encode(version: int, after: Key) -> str:
    return base64.urlsafe_b64encode(orjson.dumps([version, *after])).decode().rstrip("=")


def _decode(token: str) -> tuple[int, Key]:
    try:
        padded = token + "=" * (-len(token) % 4)
        version, namespace, name = orjson.loads(base64.urlsafe_b64decode(padded.encode()))
    except (ValueError, TypeError) as error:
        raise bad_request("continue key is not valid") from error
    if not isinstance(version, int) or not isinstance(namespace, str) or not isinstance(name, str):
        raise bad_request("continue key is not valid")
    return version, (namespace, name)
