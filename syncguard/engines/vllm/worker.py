"""What is added to vLLM's worker in each of its processes: it can be observed there.

vLLM imports this module in a worker before it builds the model, so our kernels are registered in
time, whether or not syncguard is installed as a plugin.
"""

from collections.abc import Sequence

from syncguard.engines.buckets import read_bucket
from syncguard.engines.ranks import Reply, reply
from syncguard.engines.vllm.compat import tolerate_llvmlite
from syncguard.engines.vllm.observer import Observer
from syncguard.engines.vllm.plugin import register

__all__ = ["ObservedWorker"]

register()
tolerate_llvmlite()


class ObservedWorker:
    """A mixin of vLLM's worker."""

    def syncguard_observe(self, request: int, world: int, name: str, arguments: bytes) -> Reply:
        """Make one observation of this rank; see `syncguard.engines.ranks.reply`."""
        rank: int = self.rank  # type: ignore[attr-defined]

        def observer() -> Observer:
            made: Observer = vars(self).setdefault("syncguard_observer", Observer(self, world))
            return made

        return reply(observer, request, rank, name, arguments)

    def syncguard_reload(self, buckets: Sequence[tuple[str, Sequence[str]]]) -> None:
        """Reload all weights from files; see `syncguard.engines.buckets.read_bucket`."""
        self.reload_weights(  # type: ignore[attr-defined]
            weights_iterator=(held for path, names in buckets for held in read_bucket(path, names))
        )
