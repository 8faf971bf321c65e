"""A kubelet's own HTTPS API: commands in containers, as `kubectl exec` has them run.

The API server can't relay them here, because the kubelets of tests listen on loopback only.
"""

import json
import ssl
from pathlib import Path
from urllib.parse import quote, urlencode

import aiohttp
import yaml

from gpuloom.errors import UnavailableError
from gpuloom.runtime.clock import Clock, deadline

_PROTOCOL = "v4.channel.k8s.io"
_STDOUT, _STDERR, _STATUS = 1, 2, 3
_TIMEOUT_S = 30.0
_RESTART_S = 15.0


class _RefusedError(UnavailableError):
    """The command was not started."""


class KubeletApi:
    def __init__(self, address: str, kubeconfig: Path, clock: Clock) -> None:
        """`kubeconfig` is of a user with a client certificate, who may do this."""
        self._address = address
        self._kubeconfig = kubeconfig
        self._clock = clock

    async def execute(self, namespace: str, pod: str, container: str, command: tuple[str, ...]) -> str:
        """What the command writes. Raise UnavailableError if it can't be run or fails, or TimeoutError.

        While the container runtime comes back from a restart the kubelet refuses; then it is asked again.
        """
        ends_s = self._clock.monotonic() + _RESTART_S
        while True:
            try:
                return await self._execute(namespace, pod, container, command)
            except _RefusedError:
                if self._clock.monotonic() >= ends_s:
                    raise
            await self._clock.sleep(0.5)

    async def _execute(self, namespace: str, pod: str, container: str, command: tuple[str, ...]) -> str:
        path = "/".join(quote(part, safe="") for part in ("exec", namespace, pod, container))
        query = urlencode([*(("command", word) for word in command), ("output", "1"), ("error", "1")])
        url = f"wss://{self._address}/{path}?{query}"
        channels: dict[int, bytes] = {_STDOUT: b"", _STDERR: b"", _STATUS: b""}
        try:
            async with (
                deadline(self._clock, _TIMEOUT_S),
                aiohttp.ClientSession() as session,
                session.ws_connect(url, protocols=(_PROTOCOL,), ssl=self._tls()) as stream,
            ):
                async for message in stream:
                    if message.type is aiohttp.WSMsgType.BINARY and message.data:
                        channels[message.data[0]] += message.data[1:]
        except aiohttp.WSServerHandshakeError as error:
            raise _RefusedError(f"the kubelet does not run {command[0]} in {pod}: {error}") from error
        except aiohttp.ClientError as error:
            raise UnavailableError(f"the kubelet does not run {command[0]} in {pod}: {error}") from error
        status = json.loads(channels[_STATUS] or b"{}")
        if status.get("status") != "Success":
            said = channels[_STDERR].decode(errors="replace").strip()
            raise UnavailableError(f"{' '.join(command)} in {pod}: {status.get('message')} {said}")
        return channels[_STDOUT].decode(errors="replace")

    def _tls(self) -> ssl.SSLContext:
        """The kubelet makes its certificate itself, so that nobody can check it; ours it does check."""
        user = yaml.safe_load(self._kubeconfig.read_text(encoding="utf-8"))["users"][0]["user"]
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.load_cert_chain(user["client-certificate"], user["client-key"])
        return context
