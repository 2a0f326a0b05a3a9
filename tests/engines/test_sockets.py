"""Paths of sockets stay within what the system takes, wherever temporary files are."""

import os
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from uuid import uuid4

import pytest

from syncguard.engines import sockets
from syncguard.engines.sockets import socket_folder
from syncguard.errors import UsageError


def in_place(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))


def listens_in(folder: str) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.join(folder, str(uuid4())))


def test_the_usual_place_is_taken_if_it_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        in_place(monkeypatch, Path(short))
        with socket_folder() as folder:
            assert Path(folder).parent == Path(short)
            assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
            listens_in(folder)
        assert not Path(folder).exists()


def test_a_long_one_is_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    in_place(monkeypatch, tmp_path / ("long" * 30))
    with socket_folder() as folder:
        listens_in(folder)
    assert list((tmp_path / ("long" * 30)).iterdir()) == []


def test_the_longest_that_will_do_does(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as base:
        name = len("/syncguard-12345678")
        for extra, taken in ((0, True), (1, False)):
            parent = Path(base, "x" * (107 - 37 - name - len(base) - 1 + extra))
            in_place(monkeypatch, parent)
            with socket_folder() as folder:
                assert (Path(folder).parent == parent) is taken
                listens_in(folder)


def test_no_place_at_all_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    in_place(monkeypatch, tmp_path / ("long" * 30))
    monkeypatch.setattr(sockets, "_SHORT", ("/nowhere/at/all",))
    with pytest.raises(UsageError, match="set TMPDIR to a folder with a short path"):
        socket_folder()


def test_engines_in_one_process_share_a_folder_that_goes_with_it() -> None:
    code = (
        "from syncguard.engines.sockets import lasting_folder as folder\n"
        "assert folder() is folder()\n"
        "open(folder().name + '/store', 'w').close()\n"
        "print(folder().name)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "syncguard-" in ran.stdout
    assert not Path(ran.stdout.strip()).exists()
