"""Which processes there are, told by the session that they belong to."""

import time
from pathlib import Path

__all__ = ["left_behind", "living"]

_PATIENCE_S = 10.0  # a busy machine takes its time to bury what was killed


def left_behind(session: int) -> dict[int, str]:
    """Processes of a session that outlive it."""
    until = time.monotonic() + _PATIENCE_S
    while (found := living(session)) and time.monotonic() < until:
        time.sleep(0.05)
    return found


def living(session: int) -> dict[int, str]:
    """Processes of a session that still live, with what they call themselves."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, theirs = stat.read_text().rpartition(")")[2].split()[:4]
            title = stat.with_name("cmdline").read_text()
        except OSError:  # it has ended meanwhile
            continue
        if int(theirs) == session and state not in "ZX":
            found[int(stat.parent.name)] = title.replace("\0", " ").strip()
    return found
