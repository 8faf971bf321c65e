"""The journal in a file of the node, written whole or not at all, off the event loop."""

import asyncio
import os
from pathlib import Path

MAX_BYTES = 4 * 1024 * 1024


class JournalFile:
    def __init__(self, path: Path) -> None:
        self._path = path

    async def load(self) -> bytes | None:
        return await asyncio.to_thread(self._load)

    async def save(self, content: bytes) -> None:
        await asyncio.to_thread(self._save, content)

    def _load(self) -> bytes | None:
        try:
            with self._path.open("rb") as file:
                return file.read(MAX_BYTES)
        except FileNotFoundError:
            return None

    def _save(self, content: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        replacement = self._path.with_suffix(".new")
        with replacement.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        replacement.replace(self._path)
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


class MemoryJournal:
    """For a node without a folder of its own: layouts are forgotten with the agent."""

    def __init__(self) -> None:
        self._content: bytes | None = None

    async def load(self) -> bytes | None:
        return self._content

    async def save(self, content: bytes) -> None:
        self._content = content
