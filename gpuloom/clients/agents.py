"""Where node agents are, from a file: `{"node-1": "10.0.0.1:50052", …}`."""

from pathlib import Path

import orjson

from gpuloom.errors import InvalidRequestError
from gpuloom.runtime.parsers import Address, address

MAX_FILE_BYTES = 4 * 1024 * 1024


def read_agents_file(path: Path) -> dict[str, Address]:
    return parse_agents(read_agents_body(path), str(path))


def read_agents_body(path: Path) -> bytes:
    """The file as it is, or so much of it that `parse_agents` finds it too large."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidRequestError(f"can't read {path}: {error.strerror}") from error


def parse_agents(body: bytes, source: str) -> dict[str, Address]:
    if len(body) > MAX_FILE_BYTES:
        raise InvalidRequestError(f"{source} is larger than {MAX_FILE_BYTES} bytes")
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(f"{source} is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise InvalidRequestError(f"{source} must be a JSON object of node names and host:port")
    addresses = {}
    for node, value in parsed.items():
        if not isinstance(value, str):
            raise InvalidRequestError(f"{source}: the address of {node} must be a text host:port")
        try:
            addresses[node] = address(value)
        except ValueError as error:
            raise InvalidRequestError(f"{source}: the address of {node} {error}") from None
    return addresses
