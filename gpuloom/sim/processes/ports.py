"""Free ports of this machine for processes that start a little later."""

import random
import socket

from gpuloom.errors import UnavailableError

HOST = "127.0.0.1"
# Below the ports that systems give to outgoing connections: one of those could be taken by anybody's
# connection while the process that owns it restarts.
FIRST_PORT = 15_000
LAST_PORT = 32_000


def free_ports(count: int, chance: random.Random) -> tuple[int, ...]:
    """That many different ports that nobody listens on now. Raise UnavailableError if there are too few.

    They follow each other from a random start, so that two runs at the same time hardly meet.
    """
    span = LAST_PORT - FIRST_PORT + 1
    start = chance.randrange(span)
    held: list[socket.socket] = []
    try:
        for offset in range(span):
            if len(held) == count:
                break
            taken = _bind(FIRST_PORT + (start + offset) % span)
            if taken is not None:
                held.append(taken)
        if len(held) < count:
            raise UnavailableError(f"{count} free ports are needed on {HOST}, {len(held)} were found")
        return tuple(taken.getsockname()[1] for taken in held)
    finally:
        for taken in held:
            taken.close()


def _bind(port: int) -> socket.socket | None:
    candidate = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        candidate.bind((HOST, port))
    except OSError:
        candidate.close()
        return None
    return candidate
