"""Runs a script that imports SGLang, on a machine that has no packages for CUDA.

``python -m syncguard.engines.sglang.scripts SCRIPT``: what SGLang imports and this machine lacks is
faked while the script is imported and run; see `syncguard.engines.sglang.fakes`.
"""

import runpy
import sys

from syncguard.engines.sglang.fakes import importing
from syncguard.engines.sglang.launch import import_engine

__all__ = ["main"]


def main() -> None:
    """Run the script that is named, with the arguments behind it."""
    del sys.argv[0]
    import_engine()
    with importing():
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
