"""Start the engine of `syncguard smoke`, generate once, end: what the smoke check is compared with.

Usage: python benchmarks/_engine_alone.py CHECKPOINT
"""

import gc

gc.disable()  # collecting among the lasting objects of imports costs seconds

import os  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402


def _main() -> None:
    from syncguard.engines.vllm import VllmEngine

    engine = VllmEngine(Path(sys.argv[1]), "mxfp8")
    answers = engine.generate([[1, 2, 3]], tokens=1, seed=0)
    print(f"generated {len(answers)}", flush=True)
    os._exit(0)  # vLLM's own exit takes seconds


if __name__ == "__main__":
    _main()
