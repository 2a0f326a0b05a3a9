"""`syncguard smoke` on the tiny model against the same engine alone, from process to process.

Alone, the tuned engine starts, generates once and ends without vLLM's slow exit. The smoke check
does the same and builds a learner, synchronizes three times and runs every check each time.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _measure import QUICK, Row, Spread, at_most, machine, not_run, noted, record

from syncguard.models import resolve_model

_NAME = "syncguard smoke on tiny-qwen3, over the same engine alone"
_BOUND = 2
_ROUNDS = 2 if QUICK else 5
_MODEL = "tiny-qwen3"


def _spent(command: list[str]) -> tuple[float, float]:
    """Run a command and return its seconds, by the clock and on processors."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    elapsed = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return elapsed, used


def _rows(cache: Path) -> list[Row]:
    checkpoint = resolve_model(_MODEL, cache / "syncguard" / "models")
    alone = [sys.executable, str(Path(__file__).with_name("_engine_alone.py"))]
    alone.append(str(checkpoint.path))
    smoke = [sys.executable, "-m", "syncguard", "smoke", "--model", _MODEL]
    for command in (alone, smoke):
        _spent(command)  # fills caches of files and compiled kernels
    pairs = [(_spent(alone), _spent(smoke)) for _ in range(_ROUNDS)]
    clock, processor = (
        Spread.of([subject[which] / other[which] for other, subject in pairs]) for which in (0, 1)
    )
    rows = [
        at_most(_NAME, clock, "ratio", _BOUND),
        noted(f"{_NAME}, processor", processor, "ratio"),
    ]
    for name, index in (("the engine alone", 0), ("syncguard smoke", 1)):
        spread = Spread.of([pair[index][0] for pair in pairs])
        rows.append(noted(f"{name}, tiny-qwen3, start to end", spread, "s"))
    return rows


def _main() -> None:
    print(f"  {machine()}")
    try:
        import vllm  # noqa: F401
    except ImportError as error:
        record([not_run(_NAME, "ratio", f"at most {_BOUND}", str(error))])
        return
    with tempfile.TemporaryDirectory(prefix="syncguard-bench-") as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        record(_rows(Path(folder)))


if __name__ == "__main__":
    _main()
