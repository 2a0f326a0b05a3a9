"""Programs of syncs: what a trainer may do to an engine, legal or not, and what must come of it."""

from syncguard.programs.ops import OPS, Op, format_program, parse_program
from syncguard.programs.running import JudgedSync, ProgramRun, run_program

__all__ = [
    "OPS",
    "JudgedSync",
    "Op",
    "ProgramRun",
    "format_program",
    "parse_program",
    "run_program",
]
