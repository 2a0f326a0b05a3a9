"""The session file of a campaign: finished cells as JSON lines, so that a killed one resumes."""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any, Final

from syncguard._version import __version__
from syncguard.campaign.options import CampaignOptions
from syncguard.campaign.places import packages_of
from syncguard.distributions import versions_of
from syncguard.errors import UsageError
from syncguard.files import unwritable

__all__ = ["Session", "default_path"]

_SCHEMA: Final = "syncguard.campaign-session/1"
_IRRELEVANT: Final = ("workers", "timeout_s")
"""Options that change no cell."""

_SHOWN: Final = 60


def default_path(options: CampaignOptions) -> Path:
    """Where the session of a campaign is kept, after the XDG base directory specification."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "syncguard" / "campaigns" / f"{_digest(options)}.ndjson"


class Session:
    """Keeps the finished cells of one campaign, and gives back those of an earlier try.

    Args:
        path: The file; made if it is missing, with its folder.
        options: What the campaign runs; another campaign's file is refused.
        fresh: Whether to begin anew, whatever the file holds.

    Attributes:
        path: The file.
        kept: Key to value of everything finished in an earlier try.

    Raises:
        UsageError: The file cannot be written, is in use, or holds something else.
    """

    def __init__(self, path: Path, options: CampaignOptions, fresh: bool = False) -> None:
        self.path = path
        self.kept: dict[str, Any] = {}
        self._digest = _digest(options)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists() and not path.is_file():
                raise UsageError(
                    f"session {str(path)!r} is no file\n"
                    "  what to do: give the path of a file with --session"
                )
            self._file = open(path, "a+b", buffering=0)  # noqa: SIM115 - open as long as we are
        except OSError as error:
            raise unwritable(path, error) from error
        try:
            # Of this kind a child inherits nothing: when the parent dies, the lock goes.
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise UsageError(
                f"session {str(path)!r} is in use: another campaign with these options runs\n"
                "  what to do: wait for it, or give another file with --session"
            ) from error
        self._file.seek(0)
        lines = self._file.read().split(b"\n")
        if lines != [b""]:
            self._require_ours(lines[0], fresh)
        if fresh or lines == [b""]:
            self._file.truncate(0)
            self._begin()
        else:
            self._read(lines)

    def keep(self, key: str, value: Mapping[str, Any]) -> None:
        """Write down a finished cell."""
        self._write({"key": key, "value": value})

    def damaged(self, got: str) -> UsageError:
        """What to raise where the file holds what no campaign writes.

        Args:
            got: What it holds, and where.
        """
        return UsageError(
            f"session {str(self.path)!r} is damaged\n"
            f"  expected: finished cells, as a campaign writes them\n"
            f"  got: {got}\n"
            "  what to do: --fresh to begin it anew, or another path with --session"
        )

    def close(self, complete: bool) -> None:
        """Close the file; one of a complete campaign has no more use and goes."""
        if complete:
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()
        self._file.close()

    def _require_ours(self, line: bytes, fresh: bool) -> None:
        header = _parsed(line)
        if not isinstance(header, dict) or header.get("schema") != _SCHEMA:
            self._file.close()
            raise UsageError(
                f"will not overwrite {str(self.path)!r}: it holds no campaign's session\n"
                "  what to do: give another path with --session"
            )
        if header.get("digest") != self._digest and not fresh:
            self._file.close()
            raise UsageError(
                f"session {str(self.path)!r} is of another campaign\n"
                "  expected: the same options, and the same code of syncguard\n"
                "  what to do: --fresh to begin it anew, or another path with --session"
            )

    def _read(self, lines: list[bytes]) -> None:
        # What follows the last line feed was being written when the campaign was killed.
        whole = sum(len(line) + 1 for line in lines[:-1])
        self._file.truncate(whole)
        if not whole:
            self._begin()
        for number, line in enumerate(lines[1:-1], 2):
            match _parsed(line):
                case {"key": str(key), "value": dict(value)}:
                    self.kept[key] = value
                case _:
                    self._file.close()
                    told = line[:_SHOWN].decode(errors="replace")
                    raise self.damaged(f"line {number}: {told!r}")

    def _begin(self) -> None:
        self._write({"schema": _SCHEMA, "digest": self._digest, "version": __version__})

    def _write(self, value: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(value).encode() + b"\n")
        except OSError as error:
            raise unwritable(self.path, error) from error


def _files_of(model: str) -> list[tuple[str, int, int]]:
    """Where a checkpoint's folder is, and what its files can be told by; none of a name."""
    folder = Path(model).expanduser()
    if not model or not folder.is_dir():
        return []
    files = [(path, path.stat()) for path in sorted(folder.resolve().iterdir())]
    return [(str(path), stat.st_size, stat.st_mtime_ns) for path, stat in files]


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _digest(options: CampaignOptions) -> str:
    """Of all that a cell's result depends on: options, engine, model, and this package's code."""
    relevant = {name: v for name, v in asdict(options).items() if name not in _IRRELEVANT}
    relevant["packages"] = versions_of(packages_of(options.engine))
    relevant["model"] = _files_of(options.pins.model)
    hashed = hashlib.sha256(json.dumps(relevant, sort_keys=True).encode())
    root = Path(str(resources.files("syncguard")))
    for path in sorted(root.rglob("*.py")):
        hashed.update(path.relative_to(root).as_posix().encode())
        hashed.update(path.read_bytes())
    return hashed.hexdigest()[:16]
