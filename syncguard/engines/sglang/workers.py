"""What runs in the processes of an engine of SGLang, in place of SGLang's own entry points.

A spawned process unpickles the arguments of its entry point, which are SGLang's, after it has
imported this module: so the fakes are there from here on, until SGLang has loaded its model.
"""

import contextlib
import multiprocessing
from pathlib import Path
from typing import Any, Final

from syncguard.engines.sglang.fakes import importing

__all__ = ["run_detokenizer", "run_scheduler"]

_loading: Final = contextlib.ExitStack()
if multiprocessing.current_process().name != "MainProcess":
    _loading.enter_context(importing())


def run_detokenizer(*args: Any, **kwargs: Any) -> None:
    """Run SGLang's detokenizer."""
    from sglang.srt.managers.detokenizer_manager import run_detokenizer_process

    _loading.close()
    run_detokenizer_process(*args, **kwargs)


def run_scheduler(*args: Any, quantization: str, **kwargs: Any) -> None:
    """Run SGLang's scheduler, with a remote call that makes observations.

    Args:
        args: SGLang's.
        quantization: One of `syncguard.engines.sglang.launch.QUANTIZATIONS`.
        kwargs: SGLang's.
    """
    from sglang.srt.managers import scheduler

    from syncguard.engines.sglang.launch import equip, import_engine

    import_engine()
    equip(quantization)
    told = scheduler.Scheduler.get_init_info

    def get_init_info(self: Any) -> Any:
        _loading.close()
        return told(self)

    scheduler.Scheduler.get_init_info = get_init_info
    scheduler.Scheduler.syncguard_observe = _observe
    scheduler.run_scheduler_process(*args, **kwargs)


def _observe(self: Any, observation: str, given: list[Any], answer: str) -> None:
    """Make an observation, and leave it in a file: a remote call returns nothing."""
    from syncguard.engines.carrying import to_bytes
    from syncguard.engines.sglang.observer import Observer

    observer = getattr(self, "syncguard_observer", None)
    if observer is None:
        observer = self.syncguard_observer = Observer(self.tp_worker.model_runner)
    made = getattr(observer, observation)(*given)
    Path(answer).write_bytes(to_bytes(made))
