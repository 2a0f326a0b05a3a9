"""Put the matrix of a survey into docs/survey.md, between the markers of its engine.

Usage: python scripts/paste_survey.py NAME SURVEY.json DATE
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _blocks import fill

PAGE = Path(__file__).parents[1] / "docs" / "survey.md"
CORE = [f"C{number}" for number in range(1, 8)]
WORDS = {"pass": "pass", "fail": "**fail**", "not_run": "open"}
WORST = ("fail", "not_run", "pass")


def main() -> int:
    """Replace one block; 0 if it was there."""
    name, source, date = sys.argv[1:]
    survey = json.loads(Path(source).read_text("utf-8"))
    summary = "\n".join(summary_of(survey, date)) + "\n"
    return fill(PAGE, name, summary)


def summary_of(survey: dict[str, Any], date: str) -> Iterator[str]:
    """Lines of Markdown."""
    cells = survey["cells"]
    versions = ", ".join(f"{name} {version}" for name, version in survey["environment"].items())
    counts = Counter(cell["status"] for cell in cells)
    known = sum(cell["known"] for cell in cells)
    yield f"{date}: {versions}; {survey['seconds'] / 60:.0f} minutes on two cores."
    yield (
        f"{len(cells)} cells: {counts['pass']} pass, {counts['fail']} fail ({known} of them by "
        f"known findings), {counts['not_run']} not run."
    )
    yield ""
    yield f"| configuration | {' | '.join(CORE)} | C8+ | s | MiB | |"
    yield f"|---|{'---|' * len(CORE)}---|---|---|---|"
    for cell in cells:
        told = cell["conditions"]
        marks = [mark(told[name]) for name in CORE]
        others = [one for name, one in told.items() if name not in CORE and one["applicable"]]
        worst = min(others, key=lambda one: WORST.index(one["status"]), default=None)
        finding = cell["cell"]["finding"].replace("_", "-")
        note = f"[{finding}](findings/{finding}.md)" if cell["known"] else cell["error"]
        note = note or cell["cell"].get("note", "")
        figures = (f"{cell[name]:.0f}" if cell[name] else "-" for name in ("seconds", "peak_mib"))
        yield (
            f"| `{cell['name']}` | {' | '.join(marks)} | {mark(worst) if worst else 'n/a'} "
            f"| {' | '.join(figures)} | {note} |"
        )


def mark(told: dict[str, Any]) -> str:
    """One word."""
    return WORDS[told["status"]] if told["applicable"] else "n/a"


if __name__ == "__main__":
    raise SystemExit(main())
