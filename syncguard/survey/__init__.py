"""Every way in which an engine holds, receives and serves weights, tried one by one."""

from syncguard.survey.cell import SurveyCell
from syncguard.survey.options import SurveyOptions
from syncguard.survey.result import CellResult, SurveyResult
from syncguard.survey.survey import run_survey
from syncguard.survey.tables import TABLES, cells_of

__all__ = [
    "TABLES",
    "CellResult",
    "SurveyCell",
    "SurveyOptions",
    "SurveyResult",
    "cells_of",
    "run_survey",
]
