"""What the start of any engine changes for a while, it leaves as it was."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from syncguard.engines.starting import temporary_files_in


@pytest.mark.parametrize("before", [None, "/somewhere"])
def test_temporary_files_of_processes_are_there_too(
    before: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = ("TMPDIR", "TORCHINDUCTOR_CACHE_DIR")
    usual = tempfile.gettempdir()
    for name in names:
        if before is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, before)
    told = "import tempfile; print(tempfile.gettempdir())"
    with temporary_files_in(str(tmp_path)):
        ran = subprocess.run(
            [sys.executable, "-c", told], capture_output=True, text=True, check=True
        )
        assert ran.stdout.strip() == tempfile.gettempdir() == str(tmp_path)
        kept = os.environ["TORCHINDUCTOR_CACHE_DIR"]
        assert kept.startswith(before or usual)  # torch keeps it for all of the process
    assert [os.environ.get(name) for name in names] == [before, before]
    assert tempfile.gettempdir() == usual
