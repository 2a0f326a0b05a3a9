"""Mutation testing of the checks: change one thing in a check, and see whether a test notices.

Mutants come from cosmic-ray, which must be installed (best in an environment of its own on top of
this one). Each runs in a forked child of a process that has imported everything heavy, first
against the tests of its module and, if those pass, against all fast tests of the judging core.

    python scripts/mutate_checks.py [--jobs 2] [--to survivors.txt] [MODULE ...]
"""

import argparse
import ast
import contextlib
import importlib.abc
import importlib.util
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CHECKS = ROOT / "syncguard" / "checks"
TIMEOUT_S = 120
NO_MODULE = 77

TESTS = {
    "atomicity": "atomicity",
    "completeness": "ledger session poison_coverage",
    "derived_state": "exact_probe random_probe rederivation equal_sync",
    "freshness": "freshness",
    "published": "random_probe",
    "storage_identity": "storage_identity alias_graph",
    "weight_grid": "weight_bytes weight_values",
}
"""Module to its tests in ``tests/checks``; by default the test of the same name."""

ALL = ("tests/checks", "tests/test_guard.py", "tests/test_observing.py", "tests/test_runner.py")
"""What a mutant must survive to count as a survivor."""

REPLACED = {
    "Binary": "Add_Sub Sub_Add Mul_Div Div_Mul Mod_Mul Pow_Mul FloorDiv_Mul BitOr_BitAnd "
    "BitAnd_BitOr BitXor_BitAnd",
    "Comparison": "Eq_NotEq NotEq_Eq Lt_LtE Lt_Gt LtE_Lt LtE_Gt Gt_GtE Gt_Lt GtE_Gt GtE_Lt "
    "Is_IsNot IsNot_Is",
}
"""Replacements of operators that are tried; any other of the same operator would be alike."""


@dataclass(frozen=True)
class Mutant:
    """One change: the module's name, its changed source, and the change as a diff."""

    module: str
    source: str
    diff: str


class Replaced(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from another source."""

    def __init__(self, name: str, source: str) -> None:
        self._name, self._source = name, source

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Answer for the one module only."""
        return importlib.util.spec_from_loader(name, self) if name == self._name else None

    def exec_module(self, module: ModuleType) -> None:
        """Run the changed source."""
        exec(compile(self._source, f"<mutant of {self._name}>", "exec"), vars(module))  # noqa: S102


def mutants(path: Path) -> Iterator[Mutant]:
    """All mutants of a module that compile and do something else."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator, operator_names

    source = path.read_text()
    done = ast.dump(_without_declarations(ast.parse(source)))
    for name in operator_names():
        kind, _, pair = name.partition("/Replace")[2].partition("Operator_")
        if "Variable" in name or pair not in REPLACED.get(kind, pair).split():
            continue  # the first needs to be told which variables
        for occurrence in range(10_000):
            changed = mutate_code(source, get_operator(name)(), occurrence)
            if changed is None:
                break
            with contextlib.suppress(SyntaxError):
                if ast.dump(_without_declarations(ast.parse(changed))) != done:
                    yield Mutant(path.stem, changed, _diff(f"{path.stem}: {name}", source, changed))


def _diff(title: str, old: str, new: str) -> str:
    lines = list(unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=1))
    return "\n".join([title, *lines[2:]])


def outcomes(waiting: Iterable[Mutant], jobs: int) -> Iterator[tuple[Mutant, str]]:
    """Run mutants in children, a few at a time, and tell what became of each."""
    running: dict[int, tuple[Mutant, float]] = {}
    left = iter(waiting)
    while True:
        while len(running) < jobs and (mutant := next(left, None)) is not None:
            pid = os.fork()
            if not pid:
                os._exit(_child(mutant))
            running[pid] = mutant, time.monotonic() + TIMEOUT_S
        if not running:
            return
        done, status = os.waitpid(-1, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            told = {0: "survived", NO_MODULE: "no module", -signal.SIGKILL: "hung"}
            yield running.pop(done)[0], told.get(code, "killed")
            continue
        for pid, (_, end) in running.items():
            if time.monotonic() > end:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _child(mutant: Mutant) -> int:
    import pytest

    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    sys.meta_path.insert(0, Replaced(f"syncguard.checks.{mutant.module}", mutant.source))
    try:
        importlib.import_module(f"syncguard.checks.{mutant.module}")
    except Exception:  # noqa: BLE001 - it is no program at all
        return NO_MODULE
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    names = TESTS.get(mutant.module, mutant.module).split()
    own = [f"tests/checks/test_{name}.py" for name in names]
    return int(pytest.main([*options, *own])) or int(pytest.main([*options, *ALL]))


def _without_declarations(tree: ast.AST) -> ast.AST:
    """What a module does, without annotations, kinds of parameters and options of dataclasses."""
    for node in ast.walk(tree):
        for field in ("annotation", "returns"):
            if getattr(node, field, None) is not None:
                setattr(node, field, None)
        if isinstance(node, ast.arguments):
            node.args = [*node.posonlyargs, *node.args, *node.kwonlyargs]
            node.defaults += [each for each in node.kw_defaults if each is not None]
            node.posonlyargs, node.kwonlyargs, node.kw_defaults = [], [], []
        if isinstance(node, ast.ClassDef):
            node.decorator_list = []
    return tree


def main() -> None:
    """Run all mutants of the named modules and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--to", type=Path, help="where to write the survivors")
    given = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    _preload()
    paths = [CHECKS / f"{name}.py" for name in given.modules] or sorted(CHECKS.glob("[a-z]*.py"))
    survivors: list[str] = []
    total: Counter[str] = Counter()
    for path in paths:
        counts: Counter[str] = Counter()
        for mutant, found in outcomes(mutants(path), given.jobs):
            counts[found] += 1
            if found == "survived":
                survivors.append(mutant.diff)
        total += counts
        _tell(f"{path.stem:20} {dict(counts)}")
    killed, alive = total["killed"] + total["hung"], total["survived"]
    _tell(f"{killed} of {killed + alive} mutants were noticed: {killed / (killed + alive):.1%}")
    if given.to:
        given.to.write_text("\n\n".join(survivors) + "\n")


def _tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _preload() -> None:
    """Import and warm up what every child needs, so that a child takes a second."""
    import hypothesis  # noqa: F401
    import jsonschema  # noqa: F401
    import pytest  # noqa: F401
    import torch

    import syncguard.cli
    import syncguard.grids  # noqa: F401
    from syncguard.fingerprint import fingerprint

    torch.set_num_threads(1)
    fingerprint(torch.ones(64, 64))
    assert "syncguard.checks" not in sys.modules, "each child imports its own"  # noqa: S101


if __name__ == "__main__":
    main()
