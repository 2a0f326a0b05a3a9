"""What is added to vLLM's worker in each of its processes: it can be observed there.

vLLM imports this module in a worker before it builds the model, so our kernels are registered in
time, whether or not syncguard is installed as a plugin.
"""

import json
from collections.abc import Sequence

from syncguard.engines.buckets import read_bucket
from syncguard.engines.ranks import Reply, reply
from syncguard.engines.vllm.compat import tolerate_llvmlite
from syncguard.engines.vllm.exchange import Exchange
from syncguard.engines.vllm.observer import Observer
from syncguard.engines.vllm.plugin import register

__all__ = ["ObservedWorker"]

register()
tolerate_llvmlite()


class ObservedWorker:
    """A mixin of vLLM's worker."""

    def syncguard_observe(
        self, request: int, first: int, world: int, name: str, arguments: bytes
    ) -> Reply:
        """Make one observation of this rank; see `syncguard.engines.ranks.reply`.

        Args:
            request: Number of the request.
            first: Number of the replica's first rank among those of all replicas.
            world: How many ranks all replicas have.
            name: A method of `Observer`.
            arguments: Its arguments.
        """
        rank: int = self.rank  # type: ignore[attr-defined]

        def observer() -> Observer:
            made = Observer(self, world, first)
            kept: Observer = vars(self).setdefault("syncguard_observer", made)
            return kept

        return reply(observer, request, rank, name, arguments)

    def syncguard_observe_by_file(self, number: str) -> dict[str, int]:
        """Make one observation whose request and answer are files, as a server's caller asks it.

        Args:
            number: Of the request; see `syncguard.engines.vllm.exchange`.

        Returns:
            Request and rank that the file with the answer is of.
        """
        files, request = Exchange.of_environment(), int(number)
        reply = self.syncguard_observe(request, *files.request(request))
        files.answer(reply)
        return {"request": request, "rank": reply[1]}

    def syncguard_reload(self, buckets: Sequence[tuple[str, Sequence[str]]]) -> None:
        """Reload all weights from files; see `syncguard.engines.buckets.read_bucket`."""
        self.reload_weights(  # type: ignore[attr-defined]
            weights_iterator=(held for path, names in buckets for held in read_bucket(path, names))
        )

    def syncguard_reload_told(self, buckets: str) -> None:
        """The same, told in JSON, as a server's caller has to."""
        self.syncguard_reload(json.loads(buckets))
