"""A hook of mkdocs: links that leave docs/ lead to files of the repository, which pages can't show.

They become plain text with the path, so that a strict build checks all others; a missing file is an error.
"""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#\s]*)(#[^)]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    folder = (ROOT / "docs" / page.file.src_uri).parent

    def plain(match: re.Match[str]) -> str:
        target = (folder / match[2]).resolve()
        if target.is_relative_to(ROOT / "docs"):
            return match[0]
        if not target.exists():
            raise FileNotFoundError(f"{page.file.src_uri} links to {match[2]}, which does not exist")
        return f"{match[1]} (`{target.relative_to(ROOT)}`)"

    return _LINK.sub(plain, markdown)
