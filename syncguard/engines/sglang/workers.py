"""What runs in the processes of an engine of SGLang, in place of SGLang's own entry points.

A spawned process unpickles the arguments of its entry point, which are SGLang's, after it has
imported this module: so the fakes are there from here on, until SGLang has loaded its model.
"""

import contextlib
import multiprocessing
from typing import Any, Final

from syncguard.engines.ranks import reply
from syncguard.engines.sglang import compat
from syncguard.engines.sglang.fakes import importing
from syncguard.engines.sglang.ranks import answer_in

__all__ = ["run_detokenizer", "run_scheduler"]

_loading: Final = contextlib.ExitStack()
if multiprocessing.current_process().name != "MainProcess":
    _loading.enter_context(importing())


def run_detokenizer(*args: Any, **kwargs: Any) -> None:
    """Run SGLang's detokenizer."""
    from sglang.srt.managers.detokenizer_manager import run_detokenizer_process

    _loading.close()
    run_detokenizer_process(*args, **kwargs)


def run_scheduler(*args: Any, quantization: str, experts: bool, **kwargs: Any) -> None:
    """Run SGLang's scheduler, with a remote call that makes observations.

    Args:
        args: SGLang's.
        quantization: One of `syncguard.engines.sglang.launch.QUANTIZATIONS`.
        experts: Whether the model has some.
        kwargs: SGLang's.
    """
    from sglang.srt.managers import scheduler

    from syncguard.engines.sglang.launch import equip, import_engine

    import_engine()
    equip(quantization, experts=experts)
    told = scheduler.Scheduler.get_init_info

    def get_init_info(self: Any) -> Any:
        _loading.close()
        return told(self)

    scheduler.Scheduler.get_init_info = get_init_info
    scheduler.Scheduler.syncguard_observe = _observe
    scheduler.run_scheduler_process(*args, **kwargs)


def _observe(self: Any, request: int, world: int, folder: str) -> None:
    """Make one observation of this rank; see `syncguard.engines.sglang.ranks`."""
    from syncguard.engines.sglang.observer import Observer

    runner = self.tp_worker.model_runner
    rank = compat.rank_of(runner)

    def observer() -> Observer:
        made: Observer = vars(self).setdefault("syncguard_observer", Observer(runner, rank, world))
        return made

    answer_in(folder, rank, lambda name, given: reply(observer, request, rank, name, given))
