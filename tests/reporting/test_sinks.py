import errno
import io
import json
import os
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from syncguard.errors import UsageError
from syncguard.report import Report
from syncguard.reporting import Listener, Ndjson, ReportFile, ReportFolder
from tests.reports import SCHEMA, STALE, a_report

FILES = {"report.json", "report.txt", "verdicts.ndjson"}


def run(listener: Listener, report: Report) -> None:
    listener.step("sync 1", 0, 1)
    for verdict in report.verdicts:
        listener.verdict(verdict)
    listener.finished(report)


def test_ndjson_lines_satisfy_the_schema_of_a_verdict() -> None:
    out = io.StringIO()
    run(Ndjson(out), a_report(STALE))
    schema = Draft202012Validator({"$ref": "#/$defs/verdict", "$defs": SCHEMA["$defs"]})
    lines = out.getvalue().splitlines()
    assert len(lines) == len(a_report(STALE).verdicts)
    for line in lines:
        schema.validate(json.loads(line))


def test_report_file_is_written_at_the_end_only(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    sink = ReportFile(path)
    assert not path.exists()
    run(sink, a_report())
    assert Report.from_json(path.read_text()) == a_report()


def test_report_file_checks_its_path_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write"):
        ReportFile(tmp_path / "missing" / "report.json")


def test_report_folder_keeps_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "1"
    run(ReportFolder(folder), a_report(STALE))
    assert {path.name for path in folder.iterdir()} == FILES
    assert Report.from_json((folder / "report.json").read_text()) == a_report(STALE)
    assert len((folder / "verdicts.ndjson").read_text().splitlines()) == 7
    text = (folder / "report.txt").read_text()
    assert text.startswith("syncguard ")
    assert "exit code 1: a condition is violated" in text
    assert "\x1b" not in text


def test_report_folder_writes_verdicts_as_they_come(tmp_path: Path) -> None:
    sink = ReportFolder(tmp_path)
    sink.verdict(STALE)
    assert json.loads((tmp_path / "verdicts.ndjson").read_text())["check"] == STALE.check
    sink.close()


def test_an_earlier_run_is_replaced_and_never_mixed_with_the_new_one(tmp_path: Path) -> None:
    run(ReportFolder(tmp_path), a_report())
    sink = ReportFolder(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == FILES  # until there is something new
    sink.verdict(STALE)
    sink.close()
    assert [path.name for path in tmp_path.iterdir()] == ["verdicts.ndjson"]
    assert len((tmp_path / "verdicts.ndjson").read_text().splitlines()) == 1


@pytest.mark.parametrize("name", sorted(FILES))
def test_foreign_files_are_refused_before_the_run(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("notes for a talk\n")
    with pytest.raises(UsageError, match=f"will not overwrite .*{name}"):
        ReportFolder(tmp_path)
    assert (tmp_path / name).read_text() == "notes for a talk\n"


def test_a_folder_that_was_made_for_nothing_goes_again(tmp_path: Path) -> None:
    ReportFolder(tmp_path / "run").close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_there_stays(tmp_path: Path) -> None:
    ReportFolder(tmp_path).close()
    assert tmp_path.is_dir()


def test_a_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot write .*Not a directory"):
        ReportFolder(tmp_path / "file" / "run")


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    class Full:
        """A stream that runs out of room in the middle of a line."""

        def __init__(self, file: io.FileIO) -> None:
            self._file = file

        def tell(self) -> int:
            return self._file.tell()

        def truncate(self, size: int) -> None:
            self._file.truncate(size)

        def write(self, data: bytes) -> int:
            self._file.write(data[:10])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def close(self) -> None:
            self._file.close()

    sink = ReportFolder(tmp_path)
    sink.verdict(STALE)
    whole = (tmp_path / "verdicts.ndjson").read_bytes()
    sink._stream = Full(sink._stream)  # type: ignore[arg-type, assignment]
    with pytest.raises(UsageError, match=r"verdicts.ndjson': No space left"):
        sink.verdict(STALE)
    assert (tmp_path / "verdicts.ndjson").read_bytes() == whole
    sink.close()
