"""Mutation testing of the checks: change one thing in a check, and see whether a test notices.

Other operators and numbers come from cosmic-ray, which must be importable (best from a folder of
its own, see docs/mutation-testing.md); conditions, filters, arguments, statements and texts are
left out here.
Each mutant runs in a forked child of a process that has imported everything heavy, first
against the tests of its module and, if those pass, against all fast tests of the judging core.

    python scripts/mutate_checks.py [--jobs 2] [--to survivors.txt] [MODULE ...]
"""

import argparse
import ast
import contextlib
import gc
import importlib.abc
import importlib.util
import itertools
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import unified_diff
from functools import partial
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

ALL = (
    "tests/checks",
    "tests/test_guard.py",
    "tests/test_observing.py",
    "tests/test_runner.py",
    "tests/test_samples.py",
)
"""What a mutant must survive to count as a survivor."""

BLOCKS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.If, ast.For, ast.While, ast.With)

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
    source = ast.unparse(ast.parse(path.read_text()))
    done = {ast.dump(_without_declarations(ast.parse(source)))}
    for name, changed in (*_by_cosmic_ray(source), *_by_leaving_out(source)):
        with contextlib.suppress(SyntaxError):
            told = ast.dump(_without_declarations(ast.parse(changed)))
            if told not in done:
                done.add(told)
                yield Mutant(path.stem, changed, _diff(f"{path.stem}: {name}", source, changed))


def _by_cosmic_ray(source: str) -> Iterator[tuple[str, str]]:
    """Other operators, numbers and so on; name of the change and the changed source."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator, operator_names

    for name in operator_names():
        kind, _, pair = name.partition("/Replace")[2].partition("Operator_")
        if "Variable" in name or pair not in REPLACED.get(kind, pair).split():
            continue  # the first needs to be told which variables
        for occurrence in range(10_000):
            changed = mutate_code(source, get_operator(name)(), occurrence)
            if changed is None:
                break
            yield name, changed


def _by_leaving_out(source: str) -> Iterator[tuple[str, str]]:
    """Something that is there left out; name of the change and the changed source."""
    for number, node in enumerate(ast.walk(ast.parse(source))):
        for name, change in _changes(node):
            tree = ast.parse(source)
            change(next(itertools.islice(ast.walk(tree), number, None)))
            yield name, ast.unparse(tree)


def _changes(node: Any) -> Iterator[tuple[str, Callable[[Any], object]]]:
    if isinstance(node, ast.If | ast.IfExp):
        for value in (True, False):
            yield f"condition {value}", partial(_set, "test", ast.Constant(value))
    lists = {
        ast.comprehension: ("ifs", "filter"),
        ast.BoolOp: ("values", "operand"),
        ast.Call: ("keywords", "keyword"),
    }
    field, what = lists.get(type(node), ("", ""))
    for index in range(len(getattr(node, field, ()))):
        yield f"no {what} {index}", partial(_drop, field, index)
    for index, child in enumerate(getattr(node, "body", ())) if isinstance(node, BLOCKS) else ():
        text = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
        if isinstance(child, ast.Expr | ast.AugAssign | ast.Assign | ast.AnnAssign) and not text:
            yield "no statement", partial(_put, index, ast.Pass())
        if isinstance(child, ast.Return | ast.Continue | ast.Break):
            yield "no end", partial(_put, index, ast.Pass())
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) > 1:
        yield "no text", partial(_set, "value", "")


def _set(field: str, value: object, node: Any) -> None:
    setattr(node, field, value)


def _drop(field: str, index: int, node: Any) -> None:
    del getattr(node, field)[index]


def _put(index: int, statement: ast.stmt, node: Any) -> None:
    node.body[index] = statement


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
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:unraisableexception"]
    names = TESTS.get(mutant.module, mutant.module).split()
    own = [f"tests/checks/test_{name}.py" for name in names]
    return int(pytest.main([*options, *own])) or int(pytest.main([*options, *ALL]))


def _without_declarations(tree: ast.Module) -> ast.Module:
    """What a module does, without texts, annotations, kinds of parameters and class options."""
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
        if isinstance(node, BLOCKS):
            node.body = [each for each in node.body if not _declares(each)] or [ast.Pass()]
    return tree


def _declares(statement: ast.stmt) -> bool:
    """A docstring, the list of public names, or nothing at all."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.Pass):
        return True
    names = [getattr(target, "id", "") for target in getattr(statement, "targets", ())]
    return "__all__" in names


def main() -> None:
    """Run all mutants of the named modules and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--to", type=Path, help="a file to add the survivors to")
    given = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    _preload()
    paths = [CHECKS / f"{name}.py" for name in given.modules] or sorted(CHECKS.glob("[a-z]*.py"))
    total: Counter[str] = Counter()
    for path in paths:
        _require_control(path)
        counts: Counter[str] = Counter()
        for mutant, found in outcomes(mutants(path), given.jobs):
            counts[found] += 1
            if found == "survived" and given.to:
                with given.to.open("a") as survivors:
                    survivors.write(f"{mutant.diff}\n\n")
        total += counts
        _tell(f"{path.stem:20} {dict(counts)}")
    killed, alive = total["killed"] + total["hung"], total["survived"]
    _tell(f"{killed} of {killed + alive} mutants were noticed: {killed / (killed + alive):.1%}")


def _require_control(path: Path) -> None:
    """Tests that fail without any change would notice every mutant.

    Raises:
        SystemExit: The tests of an unchanged module fail.
    """
    unchanged = Mutant(path.stem, ast.unparse(ast.parse(path.read_text())), "")
    ((_, found),) = outcomes([unchanged], 1)
    if found != "survived":
        raise SystemExit(f"the tests of {path.stem} fail without any change: {found}")


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

    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    torch.set_num_threads(1)
    fingerprint(torch.ones(64, 64))
    assert "syncguard.checks" not in sys.modules, "each child imports its own"  # noqa: S101
    gc.freeze()
    gc.disable()  # children are short-lived


if __name__ == "__main__":
    main()
