"""Compiles the stand-in libnvidia-ml.so.1, and keeps the state that it shows."""

import os
import shutil
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent / "standin"
STATE_VARIABLE = "GPULOOM_STANDIN_STATE"
XID_EVENT = 8

_LIBRARY = "libnvidia-ml.so.1"
_COUNTED = struct.Struct("56sQ")


def compile_library(folder: Path, *flags: str, environ: Mapping[str, str] = os.environ) -> Path:
    """The library in this folder. Without a compiler the test is skipped, or fails where it must run."""
    compiler = shutil.which(environ.get("CC", "cc"), path=environ.get("PATH"))
    if compiler is None:
        reason = "THE NVML TESTS DID NOT RUN: they need a C compiler; install one, or set CC"
        if environ.get("GPULOOM_REQUIRE_REAL") == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / _LIBRARY
    warnings = ("-Wall", "-Wextra", "-Werror")
    options = ("-shared", "-fPIC", "-O1", "-std=gnu11", *warnings, f"-Wl,-soname,{_LIBRARY}", *flags)
    sources = sorted(str(source) for source in SOURCES.glob("*.c"))
    subprocess.run([compiler, *options, "-o", str(library), *sources, "-lpthread"], check=True)  # noqa: S603
    return library


class Standin:
    """What the library shows: keys as in `standin.h`, replaced whole at every change."""

    def __init__(self, path: Path, keys: Mapping[str, object]) -> None:
        self.path = path
        self._keys = dict(keys)
        self._write()

    def set(self, keys: Mapping[str, object]) -> None:
        self._keys |= keys
        self._write()

    def unset(self, *keys: str) -> None:
        for key in keys:
            del self._keys[key]
        self._write()

    def release_hangs(self) -> None:
        self._keys = {key: value for key, value in self._keys.items() if "hang" not in key.split(".")}
        self._write()

    def report_xid(self, gpu: int, xid: int, instance: int | None = None, times: int = 1) -> None:
        """On the GPU instance of this number, or on the whole GPU; so often in a row."""
        where = "-1 -1" if instance is None else f"{instance} 0"
        with self._beside(".events").open("a") as file:
            file.write(f"{gpu} {XID_EVENT} {xid} {where}\n" * times)

    def reset_gpu(self, gpu: int) -> None:
        """A pending MIG mode takes effect, and no instance survives."""
        mig, settings = self._beside(".mig"), self._beside(".settings")
        records = mig.read_text().splitlines() if mig.exists() else []
        self.put_instances(*(line for line in records if line.split()[0] != str(gpu)))
        lines = settings.read_text().splitlines() if settings.exists() else []
        pending = [line for line in lines if line.startswith(f"{gpu} mig.pending ")]
        lines += [line.replace("mig.pending", "mig.mode") for line in pending[-1:]]
        settings.write_text("".join(f"{line}\n" for line in lines))

    def put_instances(self, *lines: str) -> None:
        """Each is "gpu id profile start size has_compute uuid"."""
        self._beside(".mig").write_text("".join(f"{line}\n" for line in lines))

    def calls(self) -> dict[str, int]:
        """How often each function was called, by whichever process."""
        path = self._beside(".calls")
        records = _COUNTED.iter_unpack(path.read_bytes()) if path.exists() else ()
        return {name.split(b"\0")[0].decode(): count for name, count in records if count}

    def _write(self) -> None:
        replacement = self._beside(".new")
        replacement.write_text("".join(f"{key}={value}\n" for key, value in self._keys.items()))
        replacement.replace(self.path)

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)
