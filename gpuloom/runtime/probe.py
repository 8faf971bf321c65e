"""`python -m gpuloom.runtime.probe [URL]`: a container's health check, for images without a shell or curl.

Exits 0 if the URL answers 200, else 1 with the reason. Without a URL it asks the service of its own container
whether it is ready. It imports nothing but the standard library: it runs every few seconds in each container.
"""

import http.client
import os
import sys
from collections.abc import Mapping, Sequence

TIMEOUT_S = 3.0
_LONGEST_REASON = 500


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    host, path = _target(arguments, environ)
    connection = http.client.HTTPConnection(host, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        reason = answer.read(_LONGEST_REASON).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return _say(f"{host}{path}: {error}", 1)
    finally:
        connection.close()
    return _say(f"{answer.status} {reason.strip()}", 0 if answer.status == 200 else 1)


def _target(arguments: Sequence[str], environ: Mapping[str, str]) -> tuple[str, str]:
    if not arguments:
        return f"127.0.0.1:{environ.get('GPULOOM_HTTP_PORT', '8080')}", "/readyz"
    host, _, path = arguments[0].removeprefix("http://").partition("/")
    return host, f"/{path}"


def _say(text: str, code: int) -> int:
    sys.stdout.write(f"{text}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
