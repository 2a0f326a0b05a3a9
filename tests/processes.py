"""Which processes there are, told by the session that they belong to."""

from pathlib import Path

__all__ = ["living"]


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
