"""Blocks of a page that scripts fill, between ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->``."""

import re
import sys
from pathlib import Path

__all__ = ["fill"]


def fill(page: Path, name: str, text: str) -> int:
    """Replace one block; 0 if it was there, else 1 and a line on stderr.

    Args:
        page: The file.
        name: The block's; what follows it in the opening mark is kept.
        text: The new content, with its last line's end.
    """
    block = re.compile(
        rf"(<!-- {re.escape(name)}:begin\b.*?-->\n).*?(<!-- {re.escape(name)}:end -->)", re.DOTALL
    )
    filled, found = block.subn(lambda match: match[1] + text + match[2], page.read_text("utf-8"))
    if found != 1:
        sys.stderr.write(f"{page.name} has {found} blocks named {name!r}, expected 1\n")
        return 1
    page.write_text(filled, "utf-8")
    return 0
