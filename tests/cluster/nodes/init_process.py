"""The first process of a node: puts the node's folders where programs look for them, then waits for ever.

    init_process.py READY_FILE SOURCE=TARGET…

It runs as process 1 of a PID namespace and in a mount namespace of its own: when it goes, however it goes,
the kernel ends every process of the node and drops every mount. The last TARGET=… is bound last. Only the
standard library, so that it starts in a moment.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str]) -> None:
    ready, *mounts = arguments
    for mount in mounts:
        source, _, target = mount.partition("=")
        bind(source, target)
    # Orphans, such as the shims of a killed containerd, become children of this process; ignoring their
    # end lets the kernel take them away.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # The kernel delivers to the first process of a namespace only what it listens to.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    Path(ready).write_text(os.readlink("/proc/self/ns/mnt"), encoding="utf-8")
    while True:
        signal.pause()


def bind(source: str, target: str) -> None:
    if Path(source).is_dir():
        Path(target).mkdir(parents=True, exist_ok=True)
    _mount("--bind", source, target)
    # Volumes that the kubelet mounts must reach containers that are there already.
    _mount("--make-shared", target)


def _mount(*arguments: str) -> None:
    subprocess.run(("mount", *arguments), check=True)  # noqa: S603, S607


if __name__ == "__main__":
    main(sys.argv[1:])
