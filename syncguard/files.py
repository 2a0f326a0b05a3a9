"""Files that a user names: checked before a run, written whole or not at all."""

import contextlib
import errno
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from syncguard.errors import UsageError

__all__ = ["FULL", "Recognizer", "check_writable", "is_of_schema", "unwritable", "write_atomically"]

Recognizer = Callable[[str], bool]
"""Whether the text of an existing file is of the kind that may be replaced."""


FULL: Final = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a disk that is full."""


def is_of_schema(text: str, schema: str) -> bool:
    """Whether a file's text is JSON of a schema, of any version.

    Args:
        text: The text.
        schema: The schema without its version, such as ``syncguard.report``.
    """
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return isinstance(value, dict) and str(value.get("schema", "")).startswith(f"{schema}/")


def check_writable(path: str | Path, ours: Recognizer) -> Path:
    """Check that a file can be written, and that nothing foreign would be lost by it.

    Nothing is left behind, and an existing file is not touched.

    Args:
        path: The file.
        ours: Tells whether the text of an existing file may be replaced.

    Returns:
        The file, with links resolved.

    Raises:
        UsageError: It cannot be written, or holds something else.
    """
    target = _target(path, ours)
    try:
        handle, scratch = _scratch(target)
        os.close(handle)
        os.unlink(scratch)
    except OSError as error:
        raise unwritable(path, error) from error
    return target


def write_atomically(path: str | Path, text: str, ours: Recognizer) -> None:
    """Write a text file: a reader sees the old content or all of the new, never a part.

    Args:
        path: The file; its folder must exist.
        text: Its new content.
        ours: Tells whether the text of an existing file may be replaced.

    Raises:
        UsageError: It cannot be written, or holds something else.
    """
    target = _target(path, ours)
    scratch = None
    try:
        handle, scratch = _scratch(target)
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(handle)  # some file systems tell only now that they are full
        os.chmod(scratch, _mode(target))
        os.replace(scratch, target)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        if scratch is not None:
            with contextlib.suppress(OSError):  # it is gone once it has replaced the target
                os.unlink(scratch)


def unwritable(path: str | Path, error: OSError) -> UsageError:
    """The error for a path that cannot be written: which, why, and what to do."""
    todo = (
        "free some space, or give a path on another disk"
        if error.errno in FULL
        else "give a path in a folder that exists and that you may write to"
    )
    cause = error.strerror or str(error)
    return UsageError(f"cannot write {str(path)!r}: {cause}. What to do: {todo}")


def _target(path: str | Path, ours: Recognizer) -> Path:
    target = Path(os.path.realpath(path))
    try:
        if not target.exists():
            return target
        if not target.is_file():
            what = "a folder" if target.is_dir() else "a device or a pipe"
            raise UsageError(f"cannot write {str(path)!r}: it is {what}; give the path of a file")
        text = target.read_text("utf-8")
    except UnicodeDecodeError:
        text = "binary"
    except OSError as error:
        raise unwritable(path, error) from error
    if text and not ours(text):
        raise UsageError(
            f"will not overwrite {str(path)!r}: it exists and was not written by syncguard. "
            f"What to do: give another path, or remove that file first"
        )
    return target


def _scratch(target: Path) -> tuple[int, str]:
    # In the same folder, since a rename is atomic only within one file system.
    return tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)


def _mode(target: Path) -> int:
    # What open() would have given; mkstemp lets only the owner read.
    if target.exists():
        return target.stat().st_mode & 0o777
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask
