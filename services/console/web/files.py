"""The page's own files, read once, each with a tag by its content and a compressed form."""

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    body: bytes
    compressed: bytes
    content_type: str
    tag: str


def read_files(folder: Path = FOLDER) -> dict[str, PageFile]:
    """By path below the folder."""
    return {
        path.relative_to(folder).as_posix(): _read(path)
        for path in sorted(folder.rglob("*"))
        if path.suffix in _TYPES
    }


def _read(path: Path) -> PageFile:
    body = path.read_bytes()
    tag = f'"{hashlib.sha256(body).hexdigest()[:20]}"'
    return PageFile(body, gzip.compress(body, 9, mtime=0), _TYPES[path.suffix], tag)
