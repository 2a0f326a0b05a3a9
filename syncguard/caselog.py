"""A log of cases: JSON lines, one a program, as ``schemas/cases-1.json`` describes them.

Every case can be run again from its line: `Case.replay`.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from syncguard.programs import Op, ProgramRun, parse_program, run_program
from syncguard.stubs import Topology, make_stub_engine, make_stub_learner

__all__ = ["SCHEMA", "Case", "CaseLog", "read_cases"]

SCHEMA: Final = "syncguard.cases/1"
"""Name and version of a line's form; the version changes when a field changes its meaning."""


@dataclass(frozen=True, slots=True)
class Case:
    """One program that was run.

    Attributes:
        test: Who ran it.
        topology: Fields of the topology that are not the default's.
        seed: Of the two sides, prompts and probes.
        program: The operations, as text.
        syncs: Of each sync its number, what was illegal about it, and the names of checks that
            failed and of those that could not run.
        complaints: How what was seen contradicts what is legal; empty if the case passed.
        seconds: How long it took.
    """

    test: str
    topology: Mapping[str, Any]
    seed: int
    program: tuple[str, ...]
    syncs: tuple[Mapping[str, Any], ...]
    complaints: tuple[str, ...]
    seconds: float

    @classmethod
    def of(
        cls, run: ProgramRun, *, test: str, topology: Topology, seed: int, seconds: float
    ) -> "Case":
        """The case of a program that has run."""
        changed = {
            field.name: getattr(topology, field.name)
            for field in fields(topology)
            if getattr(topology, field.name) != field.default
        }
        syncs = [
            {
                "number": sync.number,
                "illegal": list(sync.wrongs),
                "failed": list(sync.failed),
                "silent": list(sync.silent),
            }
            for sync in run.syncs
        ]
        return cls(
            test=test,
            topology=changed,
            seed=seed,
            program=tuple(map(str, run.program)),
            syncs=tuple(syncs),
            complaints=tuple(run.complaints),
            seconds=seconds,
        )

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "Case":
        """Read a line of the log.

        Raises:
            ValueError: It is of another form.
        """
        if value.get("schema") != SCHEMA:
            raise ValueError(f"expected a line of {SCHEMA}, got schema {value.get('schema')!r}")
        known = {field.name: value[field.name] for field in fields(cls)}
        for name in ("program", "syncs", "complaints"):
            known[name] = tuple(known[name])
        return cls(**known)

    def to_dict(self) -> dict[str, Any]:
        """The case as JSON values."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"schema": SCHEMA, **values}

    @property
    def operations(self) -> tuple[Op, ...]:
        """The program as data."""
        return parse_program("; ".join(self.program))

    def replay(self) -> ProgramRun:
        """Run the program again on stubs of the same topology and seed."""
        topology = Topology(**self.topology)
        run = ProgramRun(
            make_stub_learner(topology, seed=self.seed),
            make_stub_engine(topology, seed=self.seed),
            vocabulary=topology.vocab,
            seed=self.seed,
        )
        return run_program(run, self.operations)


class CaseLog:
    """Appends cases to a file; several processes may write to one.

    Args:
        path: The file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def write(self, case: Case) -> None:
        """Append one line."""
        line = json.dumps(case.to_dict(), allow_nan=False) + "\n"
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(handle, line.encode())  # one call, so that lines of processes do not mix
        finally:
            os.close(handle)


def read_cases(path: str | Path) -> Iterator[Case]:
    """The cases of a log, in the order in which they were written.

    Raises:
        ValueError: A line is no case; the text says which.
    """
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                yield Case.from_dict(json.loads(line))
            except (KeyError, ValueError) as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
