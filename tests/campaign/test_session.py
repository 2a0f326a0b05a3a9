import json
from pathlib import Path
from typing import Any

import pytest

from syncguard.campaign import CampaignOptions
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
