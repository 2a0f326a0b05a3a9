"""Judges one sync of a program, which is open over several operations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from syncguard.checks import Check
from syncguard.fingerprint import fingerprint
from syncguard.guard import Guard
from syncguard.observations import SyncRecord
from syncguard.protocols import Engine, Learner
from syncguard.reporting import Broadcast
from syncguard.verdict import Status, Verdict

__all__ = ["JudgedSync", "SteppedGuard"]


@dataclass(frozen=True, slots=True)
class JudgedSync:
    """One sync of a program.

    Attributes:
        number: Number of the sync, from 1.
        wrongs: What was illegal about it; empty if it was legal.
        verdicts: What the checks say.
    """

    number: int
    wrongs: tuple[str, ...] = ()
    verdicts: tuple[Verdict, ...] = field(default=(), repr=False)

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the checks that failed."""
        return tuple(v.check for v in self.verdicts if v.status is Status.FAIL)

    @property
    def silent(self) -> tuple[str, ...]:
        """Names of the checks that could not run although they apply."""
        return tuple(v.check for v in self.verdicts if v.status is Status.NOT_RUN and v.counts)

    @property
    def complaint(self) -> str:
        """How verdicts and legality contradict each other; empty if they agree."""
        bad = [v for v in self.verdicts if v.counts and v.status is not Status.PASS]
        if self.wrongs and not bad:
            return f"sync {self.number} was illegal ({self.wrongs[0]}), and every check passed"
        if bad and not self.wrongs:
            told = f"{bad[0].check} gave {bad[0].status.value}: {bad[0].message}"
            return f"sync {self.number} was legal, and {told}"
        return ""


class SteppedGuard(Guard):
    """A guard around syncs that someone else makes, in steps.

    `before` comes before the sync begins, `after` when it is over.

    Args:
        learner: The learner.
        engine: The engine, able to serve.
        vocabulary: Number of tokens to draw prompts from.
        seed: Of prompts, sampling and probes.
        checks: The checks to run; by default all but references.
    """

    def __init__(
        self,
        learner: Learner,
        engine: Engine,
        *,
        vocabulary: int,
        seed: int = 0,
        checks: Sequence[Check] | None = None,
    ) -> None:
        listener = Broadcast([])
        super().__init__(learner, engine, listener, checks=checks, vocabulary=vocabulary, seed=seed)
        self._noted: tuple[dict[str, Any], dict[str, BaseException]] = {}, {}
        self._sent: Mapping[str, torch.Tensor] = {}
        self._record = SyncRecord(0, "")

    def before(self, *, poison: int, same_weights: bool) -> None:
        """Observe the engine, and poison it if ``poison`` is not 0."""
        self._noted = super()._observe_before(poison or None, same_weights)

    def after(
        self, record: SyncRecord, sent: Mapping[str, torch.Tensor], *, same_weights: bool
    ) -> list[Verdict]:
        """Run the checks.

        Args:
            record: Of the sync.
            sent: What was sent, by name on the wire.
            same_weights: As for `before`.
        """
        self._record, self._sent = record, sent
        return self.sync(bucket_bytes=1, same_weights=same_weights)[1]

    def _observe_before(
        self, poison: int | None, same_weights: bool
    ) -> tuple[dict[str, Any], dict[str, BaseException]]:
        return self._noted

    def _send(self, bucket_bytes: int, exported: dict[str, int]) -> tuple[SyncRecord, int, int]:
        exported.update((name, fingerprint(tensor)) for name, tensor in self._sent.items())
        nbytes = sum(tensor.nbytes for tensor in self._sent.values())
        return self._record, len(self._sent), nbytes
