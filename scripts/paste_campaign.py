"""Put the summary of a campaign into docs/detection.md, between the markers of its name.

Usage: python scripts/paste_campaign.py NAME CAMPAIGN.json
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _blocks import fill

PAGE = Path(__file__).parents[1] / "docs" / "detection.md"


def main() -> int:
    """Replace one block; 0 if it was there."""
    name, source = sys.argv[1:]
    campaign = json.loads(Path(source).read_text("utf-8"))
    summary = "\n".join(summary_of(campaign)) + "\n"
    return fill(PAGE, name, summary)


def summary_of(campaign: dict[str, Any]) -> Iterator[str]:
    """Lines of Markdown."""
    cells, healthy = campaign["cells"], campaign["healthy"]
    ran = {row["check"] for row in campaign["checks"]}
    claimed = [cell for cell in cells if ran & {*cell["claimed_by"]}]
    counted = [c for c in claimed if c["outcome"] in ("detected", "delayed", "survived")]
    versions = ", ".join(f"{name} {version}" for name, version in campaign["environment"].items())
    yield f"{versions}; {campaign['seconds']:.0f} s; exit code {campaign['exit_code']}."
    yield ""
    if cells:
        found = sum(cell["detected"] for cell in counted)
        faults = len({cell["fault"] for cell in cells})
        syncs = Counter(cell["syncs_to_detect"] for cell in counted if cell["detected"])
        yield f"- {faults} faults, {len(cells)} cells; {len(counted)} that a check claims."
        told = ", ".join(f"{n} at sync {at}" for at, n in sorted(syncs.items()))
        yield f"- Found of those: **{found} of {len(counted)}** ({told})."
        outcomes = Counter(cell["outcome"] for cell in cells if cell not in counted)
        others = ", ".join(f"{n} {outcome}" for outcome, n in outcomes.items())
        yield f"- Others, unclaimed: {others or 'none'}."
    low, high = healthy["interval"]
    yield (
        f"- Healthy runs: {healthy['runs']}, false alarms: **{len(healthy['alarms'])}** "
        f"(95 %: {low:.2%} to {high:.2%})."
    )
    yield ""
    if not cells:
        yield f"Asked after every sync: {', '.join(row['check'] for row in campaign['checks'])}."
        return
    yield "| check | condition | claimed cells | found | 95 % | sees in all | false alarms |"
    yield "|---|---|---|---|---|---|---|"
    for row in campaign["checks"]:
        low, high = row["interval"]
        rate = "-" if row["rate"] is None else f"{row['rate']:.0%}"
        interval = "-" if row["rate"] is None else f"{low:.1%} to {high:.1%}"
        name = f"{row['check']} (reference)" if row["reference"] else row["check"]
        yield (
            f"| {name} | {row['condition']} | {row['claimed']} | {rate} | {interval} "
            f"| {row['seen']} | {row['false_alarms']} |"
        )


if __name__ == "__main__":
    raise SystemExit(main())
