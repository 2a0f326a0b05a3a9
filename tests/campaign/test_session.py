import json
import os
from pathlib import Path
from typing import Any

import pytest

from syncguard.campaign import CampaignOptions, Pins, session
from syncguard.campaign.session import Session, default_path
from syncguard.errors import UsageError

OPTIONS = CampaignOptions(healthy=3)


def kept(path: Path, options: CampaignOptions = OPTIONS, fresh: bool = False) -> dict[str, Any]:
    session = Session(path, options, fresh)
    session.close(complete=False)
    return session.kept


def test_what_was_kept_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "state" / "s.ndjson"
    session = Session(path, OPTIONS)
    assert session.kept == {}
    session.keep("cell a", {"fired": 1})
    session.close(complete=False)
    again = Session(path, OPTIONS)
    assert again.kept == {"cell a": {"fired": 1}}
    again.keep("cell b", {})
    again.close(complete=False)
    assert kept(path).keys() == {"cell a", "cell b"}


def test_a_line_that_was_cut_off_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "s.ndjson"
    session = Session(path, OPTIONS)
    session.keep("a", {})
    session.close(complete=False)
    with path.open("ab") as file:
        file.write(b'{"key": "b", "val')
    again = Session(path, OPTIONS)
    assert again.kept == {"a": {}}
    again.keep("c", {})
    again.close(complete=False)
    assert [json.loads(line) for line in path.read_text().splitlines()][1:] == [
        {"key": "a", "value": {}},
        {"key": "c", "value": {}},
    ]


def test_a_complete_campaign_leaves_no_file(tmp_path: Path) -> None:
    session = Session(tmp_path / "s.ndjson", OPTIONS)
    session.close(complete=True)
    assert list(tmp_path.iterdir()) == []


def test_fresh_forgets(tmp_path: Path) -> None:
    path = tmp_path / "s.ndjson"
    session = Session(path, OPTIONS)
    session.keep("a", {})
    session.close(complete=False)
    assert kept(path, CampaignOptions(healthy=9), fresh=True) == {}
    assert len(path.read_text().splitlines()) == 1


def test_another_campaigns_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.ndjson"
    Session(path, OPTIONS).close(complete=False)
    with pytest.raises(UsageError, match="is of another campaign") as caught:
        Session(path, CampaignOptions(healthy=4))
    assert "--fresh" in str(caught.value)


@pytest.mark.parametrize("text", ["my notes\n", '{"a": 1}\n', "\x00"])
def test_a_foreign_file_is_never_overwritten(tmp_path: Path, text: str) -> None:
    path = tmp_path / "s.ndjson"
    path.write_text(text)
    for fresh in (False, True):
        with pytest.raises(UsageError, match=r"will not overwrite .* no campaign's session"):
            Session(path, OPTIONS, fresh)
    assert path.read_text() == text


def test_a_path_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot write"):
        Session(tmp_path / "file" / "s.ndjson", OPTIONS)


def test_the_default_path_follows_options_and_xdg(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    path = default_path(OPTIONS)
    assert path.parent == tmp_path / "syncguard" / "campaigns"
    assert default_path(CampaignOptions(healthy=3, workers=7, timeout_s=9)) == path
    assert default_path(CampaignOptions(healthy=4)) != path
    assert default_path(CampaignOptions(healthy=3, checks=("exact-probe",))) != path


@pytest.mark.parametrize(
    "line",
    [
        '{"key": "a"}',
        '{"key": "a", "value": null}',
        '{"key": ["a"], "value": {}}',
        '{"value": {}}',
        "[]",
        "nothing",
    ],
)
def test_a_damaged_line_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "s.ndjson"
    Session(path, OPTIONS).close(complete=False)
    with path.open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(UsageError, match=r"s.ndjson' is damaged\n.*\n  got: line 2: ") as caught:
        Session(path, OPTIONS)
    assert "--fresh to begin it anew" in str(caught.value)
    assert kept(path, fresh=True) == {}


def test_a_header_that_was_cut_off_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "s.ndjson"
    Session(path, OPTIONS).close(complete=False)
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    session = Session(path, OPTIONS)
    session.keep("a", {})
    session.close(complete=False)
    assert kept(path) == {"a": {}}


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path(os.devnull), tmp_path):
        with pytest.raises(UsageError, match="is no file"):
            Session(path, OPTIONS)


def test_a_checkpoint_that_is_another_makes_another_campaign(tmp_path: Path) -> None:
    path, folder = tmp_path / "s.ndjson", tmp_path / "model"
    folder.mkdir()
    weights = folder / "model.safetensors"
    weights.write_bytes(b"some")
    options = CampaignOptions(engine="vllm", healthy=3, pins=Pins(model=str(folder)))
    Session(path, options).close(complete=False)
    Session(path, options).close(complete=False)
    weights.write_bytes(b"others")
    with pytest.raises(UsageError, match="is of another campaign"):
        Session(path, options)


def test_another_version_of_an_engine_makes_another_campaign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.ndjson"
    Session(path, OPTIONS).close(complete=False)
    monkeypatch.setattr(session, "versions_of", lambda names: dict.fromkeys(names, "9"))
    with pytest.raises(UsageError, match="is of another campaign"):
        Session(path, OPTIONS)
