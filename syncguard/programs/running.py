"""Runs a program step by step, beside a model of what is legal.

The model is the protocol that every engine must keep: a sync brings each weight once, all of one
version; between its begin and its end, after one that failed, while paused, and after a pause that
kept no weights, nothing is served; all else that may happen between syncs changes no answer. The
model knows nothing of kernels, layouts or checks, so it can contradict them: a legal sync that a
check calls wrong is a false alarm, an illegal one that none does is a miss.
"""

import random
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from syncguard.checks import Check
from syncguard.grids import quantize
from syncguard.observations import SyncRecord
from syncguard.programs.judging import JudgedSync, SteppedGuard
from syncguard.programs.ops import Op, format_program
from syncguard.protocols import Learner

__all__ = ["JudgedSync", "ProgramRun", "run_program"]

_LEARNING_RATE: Final = 1e-6
_NOISE: Final = 0.3
_PROMPTS: Final = 3
_PROMPT_TOKENS: Final = 6
_NEW_TOKENS: Final = 2
_TOLERANCE: Final = 0.05
"""Nats a token that one bf16 rounding to the other side may cost; a wrong weight costs more."""

_WHILE_OPEN: Final = ("send", "resend", "drop", "reorder", "last", "finish", "fail")
_NEED_WAITING: Final = ("send", "drop", "reorder", "last")
_BETWEEN: Final = ("open", "finalize", "capture", "rebalance", "sleep", "wake")

Answers = list[tuple[list[int], NDArray[np.float64]]]


class ProgramRun:
    """A program on two sides.

    Args:
        learner: The learner.
        engine: The engine, able to serve; it need not have been synchronized.
        vocabulary: Number of tokens to draw prompts from.
        seed: Of prompts, sampling and probes.
        checks: The checks to run after each sync; by default all but references.

    Attributes:
        program: The operations until now.
        syncs: The syncs that were judged.
        complaints: How what was seen contradicts the model.
    """

    def __init__(
        self,
        learner: Learner,
        engine: Any,
        *,
        vocabulary: int,
        seed: int = 0,
        checks: Sequence[Check] | None = None,
    ) -> None:
        self.learner = learner
        self.engine = engine
        self.program: list[Op] = []
        self.syncs: list[JudgedSync] = []
        self.complaints: list[str] = []
        self._guard = SteppedGuard(learner, engine, vocabulary=vocabulary, seed=seed, checks=checks)
        shape = (_PROMPTS, _PROMPT_TOKENS)
        drawn = np.random.default_rng(seed).integers(0, vocabulary, shape)
        self._prompts: list[list[int]] = drawn.tolist()
        self._is_open = False
        self._waiting: list[str] = []
        self._sent: dict[str, torch.Tensor] = {}
        self._wrongs: list[str] = []
        self._asleep = 0
        self._refusal = ""  # why nothing may be served, even when no sync is open
        self._knows = True  # whether the model can tell; an illegal sync leaves anything behind
        self._holds = False  # the engine holds what the learner would send
        self._same = False  # it did when the sync was opened
        self._answers: Answers = []  # of the last legal sync; empty if there are none to keep

    def can(self, name: str) -> bool:
        """Whether an operation makes sense now and these sides offer it."""
        if name in _WHILE_OPEN:
            lacks = (name in _NEED_WAITING and not self._waiting) or (
                name == "resend" and not self._sent
            )
            return self._is_open and not lacks
        if name in _BETWEEN:
            offered = name == "open" or hasattr(self.engine, name)
            return offered and not self._is_open and bool(self._asleep) == (name == "wake")
        return True

    def do(self, op: Op) -> None:
        """Carry out one operation, and hold what comes of it against the model.

        Raises:
            ValueError: It makes no sense now.
        """
        if not self.can(op.name):
            after = format_program(self.program) or "the start"
            raise ValueError(f"operation {op.name!r} makes no sense after {after}")
        self.program.append(op)
        getattr(self, f"_do_{op.name}")(op.value)

    def check_refusal(self) -> None:
        """Complain if something is served that must not be."""
        if self._must_refuse():
            self._do_serve()

    def close(self) -> None:
        """Wake a paused engine: what it shares with others of this process is paused too."""
        if self._asleep:
            self.engine.wake()

    def _do_open(self, poison: int) -> None:
        number = len(self.syncs) + 1
        self._same = self._holds
        self._guard.before(poison=poison, same_weights=self._same)
        self.engine.begin(number, str(number))
        self._is_open = True
        self._waiting = [name for name, _ in self.learner.weights()]
        self._sent, self._wrongs = {}, []

    def _do_send(self, count: int) -> None:
        now, self._waiting = self._waiting[:count], self._waiting[count:]
        held = dict(self.learner.weights())
        bucket = [(name, held[name].clone()) for name in now]  # as over a wire
        self._sent |= dict(bucket)
        self.engine.send(bucket)

    def _do_resend(self, which: int) -> None:
        name = list(self._sent)[which % len(self._sent)]
        self._wrongs.append(f"{name} came twice")
        self.engine.send([(name, self._sent[name])])

    def _do_drop(self, count: int) -> None:
        self._wrongs += [f"{name} never came" for name in self._waiting[:count]]
        self._waiting = self._waiting[count:]

    def _do_reorder(self, seed: int) -> None:
        random.Random(seed).shuffle(self._waiting)

    def _do_last(self, _: int = 0) -> None:
        self._do_send(len(self._waiting))

    def _do_finish(self, _: int = 0) -> None:
        self._do_drop(len(self._waiting))
        self._wrongs += [f"{name} came of another version" for name in self._torn()]
        self._judged(self.engine.finish())
        self._refusal, self._knows = "", not self._wrongs
        if self._knows:
            self._answers = self._generate()
            self._compare_with_learner()

    def _do_fail(self, _: int = 0) -> None:
        self._wrongs.append("it was given up")
        self._judged(self.engine.abandon("given up by the program"))
        self._refusal, self._knows = f"sync {len(self.syncs)} was given up", True

    def _judged(self, record: SyncRecord) -> None:
        self._is_open = False
        self._answers = []
        self._holds = not self._wrongs
        verdicts = self._guard.after(record, self._sent, same_weights=self._same)
        self.syncs.append(JudgedSync(record.number, tuple(self._wrongs), tuple(verdicts)))
        if self.syncs[-1].complaint:
            self.complaints.append(self.syncs[-1].complaint)

    def _do_train(self, seed: int) -> None:
        self._holds = False
        noisy: Any = self.learner
        if seed and hasattr(noisy, "perturb"):
            noisy.perturb(_NOISE, seed=seed)
        else:
            self.learner.step(_LEARNING_RATE)

    def _do_finalize(self, _: int = 0) -> None:
        before = self.engine.state()
        self.engine.finalize()
        after = self.engine.state()
        changed = sorted(path for path in before | after if before.get(path) != after.get(path))
        if changed and self._answers:
            self.complaints.append(f"finalizing again changed {len(changed)} tensors: {changed[0]}")

    def _do_capture(self, _: int = 0) -> None:
        self.engine.capture()

    def _do_rebalance(self, seed: int) -> None:
        self.engine.rebalance(seed)

    def _do_sleep(self, level: int) -> None:
        self.engine.sleep(level)
        self._asleep = level

    def _do_wake(self, _: int = 0) -> None:
        self.engine.wake()
        if self._asleep > 1:
            self._refusal, self._knows = "its weights were released and none came since", True
            self._holds, self._answers = False, []
        self._asleep = 0

    def _do_serve(self, _: int = 0) -> None:
        must_not = self._must_refuse()
        try:
            answers = self._generate()
        except Exception as error:  # noqa: BLE001 - whatever an engine raises is its refusal
            if not must_not and self._knows:
                self.complaints.append(f"refused to serve: {type(error).__name__}: {error}")
            return
        if must_not:
            self.complaints.append(f"served although {must_not}")
        elif self._answers and not _close(answers, self._answers):
            self.complaints.append(f"answers changed after sync {len(self.syncs)} without a sync")

    def _must_refuse(self) -> str:
        if self._is_open:
            return "a sync is open"
        return "the engine is paused" if self._asleep else self._refusal

    def _generate(self) -> Answers:
        answers: Answers = self.engine.generate(self._prompts, _NEW_TOKENS, seed=0)
        return answers

    def _compare_with_learner(self) -> None:
        sequences = [sequence for sequence, _ in self._answers]
        forward, other = (
            np.concatenate(self.learner.logprobs(sequences, mode=mode))
            for mode in ("forward", "dequantized")
        )
        served = np.concatenate([scores for _, scores in self._answers])
        bound = _TOLERANCE + 2 * float(np.abs(forward - other).mean())
        gap = float(np.abs(served - forward).mean())
        if not gap <= bound:
            self.complaints.append(
                f"after sync {len(self.syncs)} answers are {gap:.3g} nats a token from the "
                f"learner's, which is more than {bound:.3g}"
            )

    def _torn(self) -> list[str]:
        """Weights of which the learner's forward now uses another grid than was sent."""
        now = dict(self.learner.weights())
        return [name for name, sent in self._sent.items() if self._differ(name, sent, now[name])]

    def _differ(self, name: str, sent: torch.Tensor, now: torch.Tensor) -> bool:
        if torch.equal(_octets(sent), _octets(now)):
            return False
        if sent.dtype != torch.bfloat16 or "elements" not in self.learner.grid_tensors(name):
            return True
        pairs = zip(quantize(sent), quantize(now), strict=True)
        return any(not torch.equal(_octets(one), _octets(other)) for one, other in pairs)


def run_program(run: ProgramRun, program: Iterable[Op]) -> ProgramRun:
    """Carry out a program; operations that make no sense where they stand are left out."""
    for op in program:
        if run.can(op.name):
            run.do(op)
            run.check_refusal()
    return run


def _close(one: Answers, other: Answers) -> bool:
    """Whether prompts are scored alike; a cached prefix may round otherwise than a whole one."""
    scored = _PROMPT_TOKENS - 1
    gaps = [
        np.abs(scores[:scored] - others[:scored])
        for (_, scores), (_, others) in zip(one, other, strict=True)
    ]
    return bool(np.concatenate(gaps).max() <= _TOLERANCE)


def _octets(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().view(torch.uint8)
