"""The result of a survey as one self-contained HTML page."""

from pathlib import Path
from typing import Final

from syncguard.conditions import CONDITIONS
from syncguard.files import write_atomically
from syncguard.reporting.pages import rendered
from syncguard.reporting.survey_table import MEANINGS, mark
from syncguard.survey.findings import FINDINGS
from syncguard.survey.result import SurveyResult

__all__ = ["is_survey_page", "survey_page", "write_survey_page"]

_MARK: Final = "<!-- syncguard survey -->"
_TEMPLATE: Final = "survey.html.j2"


def survey_page(result: SurveyResult) -> str:
    """The page, with its styles inside; it asks nothing of the network."""
    return rendered(
        _TEMPLATE,
        mark=_MARK,
        result=result,
        meaning=MEANINGS[result.exit_code],
        conditions=CONDITIONS,
        findings=FINDINGS,
        word=lambda told: mark(told).plain,
    )


def write_survey_page(result: SurveyResult, path: str | Path) -> None:
    """Write the page to a file: all of it, or nothing.

    Raises:
        UsageError: The path cannot be written, or holds something that is not such a page.
    """
    write_atomically(path, survey_page(result), is_survey_page)


def is_survey_page(text: str) -> bool:
    """Whether a file's text is the page of a survey."""
    return _MARK in text[:500]
