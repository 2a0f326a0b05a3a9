"""Put the text of a real run into README.md, between the markers of its name.

Usage: python scripts/paste_run.py NAME REPORT.txt   (NAME is smoke or smollm2)
"""

import sys
from pathlib import Path

from _blocks import fill

README = Path(__file__).parents[1] / "README.md"


def main() -> int:
    """Replace one block; 0 if it was there."""
    name, source = sys.argv[1:]
    lines = Path(source).read_text("utf-8").rstrip().splitlines()
    run = "\n".join(["```", *(line.rstrip() for line in lines), "```", ""])
    return fill(README, name, run)


if __name__ == "__main__":
    raise SystemExit(main())
