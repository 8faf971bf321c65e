"""The stand-in library in this process: loaded once, found by pynvml under the driver's own name."""

import ctypes
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pynvml  # type: ignore[import-untyped, unused-ignore]
import pytest

from tests.nvml.library import STATE_VARIABLE, Standin, compile_library


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def machine(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Mapping[str, object]], Standin]]:
    """Makes the machine that NVML shows to this test."""
    # The loader takes a library that is loaded already for one of the same name, so pynvml gets this one.
    ctypes.CDLL(str(library))
    _end_sessions()
    made: list[Standin] = []

    def make(keys: Mapping[str, object]) -> Standin:
        standin = Standin(tmp_path / "state", keys)
        monkeypatch.setenv(STATE_VARIABLE, str(standin.path))
        made.append(standin)
        return standin

    yield make
    for standin in made:
        standin.release_hangs()


def _end_sessions() -> None:
    """A driver that ended while a call hung could not close its session."""
    while True:
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError:
            return
