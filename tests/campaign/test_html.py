import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from syncguard.campaign.result import CampaignResult
from syncguard.errors import UsageError
from syncguard.reporting.html import is_page, page, write_page
from tests.campaign.cells import ALARMED, QUIET, a_cell, a_result
from tests.campaign.conftest import Plant
from tests.campaign.planted import STALE

HOSTILE = "</script><script>alert(1)</script>"


class Read(HTMLParser):
    """All tags with their attributes, and the text by the tag around it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self._open[-1] if self._open else "", data.strip()))

    def all(self, tag: str, **attributes: str) -> list[dict[str, str]]:
        return [a for t, a in self.tags if t == tag and attributes.items() <= a.items()]


def data(text: str, id_: str) -> Any:
    found = re.search(
        rf'<script type="application/json" id="{id_}">(.*?)</script>', text, re.DOTALL
    )
    assert found
    return json.loads(found[1])


@pytest.fixture
def result(plant: Plant) -> CampaignResult:
    plant(STALE)
    return a_result(
        a_cell("exact-probe", "published-random-probe", fault=STALE, site="a"),
        a_cell("exact-probe", fault=STALE, site="b"),
        a_cell(fault="survivor", breaks=("C2", "C5"), site=HOSTILE),
        a_cell(fault="idle", fired=0, reached=()),
        a_cell("weight-bytes", "exact-probe", fault="other"),
        healthy=(QUIET, ALARMED),
        skipped={"other": "no <seam>"},
    )


def test_it_needs_nothing_but_itself(result: CampaignResult) -> None:
    text = page(result)
    read = Read(text)
    assert not read.all("link")
    assert not read.all("img")
    assert not read.all("iframe")
    assert not [attributes for attributes in read.all("script") if "src" in attributes]
    assert "url(" not in text
    assert "@import" not in text
    assert "fetch(" not in text
    assert re.findall(r"https?://[^\s\"'<\\]+", text) == ["https://example.org/thread?a=1"]


def test_whatever_a_fault_is_called_it_is_text(result: CampaignResult) -> None:
    text = page(result)
    assert HOSTILE not in text
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in text  # in the list of survivors
    assert data(text, "cells")[2]["site"] == HOSTILE
    assert '<script>alert("nobody")' not in text
    assert "innerHTML" not in text
    assert "no &lt;seam&gt;" in text


def test_the_cells_are_those_of_the_json(result: CampaignResult) -> None:
    assert data(page(result), "cells") == result.to_dict()["cells"]


def test_the_explanations_and_threads_are_there(result: CampaignResult) -> None:
    about = data(page(result), "faults")
    assert about[STALE]["met"] == ["F3", "W14"]
    assert about[STALE]["links"] == ["https://example.org/thread?a=1&b=2"]
    assert "Seen by <script>" in about[STALE]["explanation"]
    assert about["survivor"] == {"explanation": "", "met": [], "links": []}


def test_the_matrix_reads_without_colour(result: CampaignResult) -> None:
    read = Read(page(result))
    labels = [
        attributes["aria-label"] for attributes in read.all("button") if "aria-label" in attributes
    ]
    assert "exact-probe sees it in 2 of 2 cells (claimed)" in labels
    assert "published-random-probe sees it in 1 of 2 cells" in labels
    assert "exact-probe claims it and does not see it" in labels
    assert "weight-bytes does not see it" in labels
    assert "equal-sync does not apply" in labels
    symbols = {text for tag, text in read.texts if tag == "button"}
    assert {"●", "○", "◐", "✕", "·"} <= symbols


def test_survivors_come_first(result: CampaignResult) -> None:
    read = Read(page(result))
    rows = [row["data-fault"] for row in read.all("tr") if "data-fault" in row]
    assert rows == ["survivor", "idle", STALE, "other"]
    assert [row["data-fault"] for row in read.all("tr", **{"class": "bad"})] == ["survivor"]


def test_conditions_can_be_filtered(result: CampaignResult) -> None:
    read = Read(page(result))
    buttons = [
        button["data-condition"] for button in read.all("button") if "data-condition" in button
    ]
    assert buttons == ["", "C2", "C3", "C5"]
    assert {row["data-breaks"] for row in read.all("tr") if "data-breaks" in row} == {"C2 C5", "C3"}


def test_every_replay_line_is_there(result: CampaignResult) -> None:
    text = page(result)
    assert "syncguard campaign --faults survivor" in text
    assert "syncguard campaign --no-faults --seeds-from 1" in text
    assert "the kernels of 1 layers &lt;differ&gt;" in text


def test_it_is_written_whole_and_over_its_own_kind_only(
    result: CampaignResult, tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    write_page(result, path)
    write_page(result, path)
    assert path.read_text("utf-8") == page(result)
    assert is_page(path.read_text("utf-8"))
    path.write_text("<html>my own</html>")
    with pytest.raises(UsageError, match="will not overwrite"):
        write_page(result, path)


def test_a_page_without_faults_still_reads() -> None:
    text = page(a_result(healthy=(QUIET,)))
    assert "1 healthy runs, 0 false alarms" in " ".join(text.split())
    assert 'class="matrix"' not in text
