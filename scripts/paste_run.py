"""Put the text of a real run into README.md, between the markers of its name.

Usage: python scripts/paste_run.py NAME REPORT.txt   (NAME is smoke or smollm2)
"""

import re
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def main() -> int:
    """Replace one block; 0 if it was there."""
    name, source = sys.argv[1:]
    block = re.compile(
        rf"(<!-- {re.escape(name)}:begin .*?-->\n).*?(<!-- {name}:end -->)", re.DOTALL
    )
    lines = Path(source).read_text("utf-8").rstrip().splitlines()
    run = "\n".join(["```", *(line.rstrip() for line in lines), "```", ""])
    text, found = block.subn(lambda match: match[1] + run + match[2], README.read_text("utf-8"))
    if found != 1:
        sys.stderr.write(f"README.md has {found} blocks named {name!r}, expected 1\n")
        return 1
    README.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
