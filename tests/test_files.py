import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from syncguard.errors import UsageError
from syncguard.files import check_writable, write_atomically

Write = Callable[[str | Path], object]


def ours(text: str) -> bool:
    return text.startswith("ours")


def write(path: str | Path) -> None:
    write_atomically(path, "ours, new", ours)


def check(path: str | Path) -> None:
    check_writable(path, ours)


both = pytest.mark.parametrize("act", [write, check])


def fail_with(code: int) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def test_a_new_file_has_the_text_and_the_usual_mode(tmp_path: Path) -> None:
    usual = tmp_path / "usual"
    usual.touch()
    write(tmp_path / "new")
    assert (tmp_path / "new").read_text() == "ours, new"
    assert (tmp_path / "new").stat().st_mode == usual.stat().st_mode


def test_an_earlier_file_is_replaced_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("ours, old")
    path.chmod(0o600)
    write(path)
    assert path.read_text() == "ours, new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real")
    write(link)
    assert link.is_symlink()
    assert (tmp_path / "real").read_text() == "ours, new"


def test_check_leaves_no_trace(tmp_path: Path) -> None:
    check(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


@both
@pytest.mark.parametrize("text", ["theirs", "\udcff"])
def test_a_foreign_file_is_left_alone(tmp_path: Path, act: Write, text: str) -> None:
    path = tmp_path / "file"
    content = text.encode(errors="surrogateescape")
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"will not overwrite '.*file'.*give another path"):
        act(path)
    assert path.read_bytes() == content


@both
@pytest.mark.parametrize(("name", "what"), [(".", "a folder"), ("/dev/null", "a device or a pipe")])
def test_what_is_no_file_is_named(tmp_path: Path, act: Write, name: str, what: str) -> None:
    with pytest.raises(UsageError, match=f"it is {what}; give the path of a file"):
        act(tmp_path / name)


@both
@pytest.mark.parametrize("name", ["missing/file", "plain/file"])
def test_a_path_without_a_folder_says_what_to_do(tmp_path: Path, act: Write, name: str) -> None:
    (tmp_path / "plain").touch()
    with pytest.raises(UsageError) as caught:
        act(tmp_path / name)
    said = str(caught.value)
    assert f"cannot write '{tmp_path / name}': " in said
    assert "What to do: give a path in a folder that exists and that you may write to" in said


@both
@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
def test_a_folder_that_may_not_be_written_is_named(
    tmp_path: Path, act: Write, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.mkstemp", fail_with(code))
    with pytest.raises(UsageError, match=f"cannot write '.*file': {os.strerror(code)}"):
        act(tmp_path / "file")


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("old", [None, "ours, old"])
def test_a_full_disk_leaves_the_old_content_and_nothing_else(
    tmp_path: Path, call: str, old: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    if old is not None:
        path.write_text(old)
    monkeypatch.setattr(os, call, fail_with(errno.ENOSPC))
    with pytest.raises(UsageError, match=r"No space left on device. What to do: free some space"):
        write(path)
    assert [each.read_text() for each in tmp_path.iterdir()] == ([] if old is None else [old])


def test_an_interruption_while_writing_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "file")
    assert list(tmp_path.iterdir()) == []
