"""What is done with the two sides of a cell; each scenario gives the report of a run."""

import functools
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch

from syncguard.errors import Unsupported
from syncguard.guard import Guard
from syncguard.observations import SyncRecord
from syncguard.protocols import Engine, Learner
from syncguard.report import Report
from syncguard.reporting import Broadcast
from syncguard.sides import PROCESSES, make_engine, make_learner, make_model
from syncguard.smoke import SmokeOptions, run_smoke
from syncguard.survey.cell import SurveyCell

__all__ = ["SCENARIOS", "Scenario"]

Scenario = Callable[[SurveyCell], Report]
Weights = Iterator[tuple[str, torch.Tensor]]

_BUCKETS: Final = 8
_ONE_WEIGHT_MIB: Final = 1e-6
_WHOLE_MIB: Final = 1e6
_PATTERN: Final = 0xA5
_UPDATED: Final = 2
"""The level of sleep after which weights are synchronized, in the words of vLLM and SGLang."""


def _smoke(cell: SurveyCell, bucket_mib: float | None = None) -> Report:
    """What ``syncguard smoke`` does.

    What is compiled needs a process in which torch has not been told to compile nothing.
    """
    if cell.compiled == "compile":
        from syncguard.survey.spawning import smoke_in_new_process

        return smoke_in_new_process(cell)
    options = SmokeOptions(
        engine=cell.engine,
        model=cell.model,
        quantization=cell.weights,
        path=cell.path,
        process=_process(cell),
        bucket_mib=bucket_mib,
        settings=cell.settings,
    )
    return run_smoke(options, Broadcast([]))


def _process(cell: SurveyCell) -> str:
    """What the smoke check calls it; settings say the rest."""
    return cell.process if cell.process in PROCESSES else PROCESSES[0]


def _sides(cell: SurveyCell) -> tuple[Guard, Learner, Engine, int]:
    """Both sides, the guard around their syncs, and how large a bucket is."""
    checkpoint = make_model(cell.engine, cell.model, cell.weights)
    engine = make_engine(
        cell.engine, checkpoint, cell.weights, cell.path, 0, cell.settings, _process(cell)
    )
    learner = make_learner(checkpoint, cell.weights, 0, engine.wire)
    guard = Guard(learner, engine, Broadcast([]), vocabulary=checkpoint.config["vocab_size"])
    return guard, learner, engine, sum(t.nbytes for _, t in learner.weights()) // _BUCKETS


def _after_failed(broken: Callable[[Weights], Weights]) -> Scenario:
    """A sync, another one that fails on the way, and a complete one, whose verdicts count."""

    def run(cell: SurveyCell) -> Report:
        guard, learner, _, limit = _sides(cell)
        guard.sync(bucket_bytes=limit, poison=_PATTERN)
        learner.step(1e-6)
        weights = learner.weights
        learner.weights = lambda: broken(weights())  # type: ignore[method-assign]
        failed, _ = guard.sync(bucket_bytes=limit)
        learner.weights = weights  # type: ignore[method-assign]
        if not failed.error:
            raise RuntimeError("the sync that was to fail did not")
        summary, verdicts = guard.sync(bucket_bytes=limit)
        return Report(syncs=(summary,), verdicts=tuple(verdicts))

    return run


def _after_partial(chosen: Callable[[str], bool]) -> Scenario:
    """A sync, and another session that brings some of the same weights again: nothing changes."""

    def run(cell: SurveyCell) -> Report:
        guard, learner, engine, limit = _sides(cell)
        summary, _ = guard.sync(bucket_bytes=limit, poison=_PATTERN)
        again = [(name, tensor) for name, tensor in learner.weights() if chosen(name)]
        engine.begin(summary.number, summary.version)
        if again:
            engine.send(again)
        engine.finish()
        return Report(syncs=(summary,), verdicts=tuple(guard.judge()))

    return run


def _left_out(cell: SurveyCell) -> Report:
    """A sync, and another one of which the last replica gets no bucket; its verdicts count."""
    guard, learner, engine, limit = _sides(cell)
    guard.sync(bucket_bytes=limit, poison=_PATTERN)
    learner.step(1e-6)
    *_, last = sites = _capable(engine, "seams")()["receive"].values()
    if len(sites) == 1:
        raise RuntimeError("there are no replicas of which one could be left out")
    with last.wrap(lambda original: lambda *bucket: []):
        summary, verdicts = guard.sync(bucket_bytes=limit, poison=_PATTERN)
    return Report(syncs=(summary,), verdicts=tuple(verdicts))


def _asleep(cell: SurveyCell) -> Report:
    """A sync, and another one while the engine sleeps, judged when it is awake.

    It sleeps as it is meant to before an update: what it holds need not be kept.
    """
    guard, learner, engine, limit = _sides(cell)
    guard.sync(bucket_bytes=limit, poison=_PATTERN)
    learner.step(1e-6)
    sleep, wake = (_capable(engine, name) for name in ("sleep", "wake"))
    begin, finish = engine.begin, engine.finish

    def begin_asleep(number: int, version: str) -> None:
        sleep(_UPDATED)
        begin(number, version)

    def finish_and_wake() -> SyncRecord:
        record = finish()
        wake()
        return record

    engine.begin, engine.finish = begin_asleep, finish_and_wake  # type: ignore[method-assign]
    summary, verdicts = guard.sync(bucket_bytes=limit, poison=_PATTERN)
    return Report(syncs=(summary,), verdicts=tuple(verdicts))


def _capable(engine: Engine, name: str) -> Any:
    """A method that not every engine has.

    Raises:
        Unsupported: This one has not.
    """
    method = getattr(engine, name, None)
    if method is None:
        raise Unsupported(f"{engine.name} has no {name!r}")
    return method


def _with_unknown_name(weights: Weights) -> Weights:
    """The engine refuses the last name, when everything else has arrived."""
    yield from weights
    yield "model.layers.9.mlp.down_proj.weight", torch.zeros(2, 2, dtype=torch.bfloat16)


def _with_wrong_shape(weights: Weights) -> Weights:
    """One matrix has a row too few."""
    for name, tensor in weights:
        yield name, tensor[:-1] if name.endswith("0.mlp.down_proj.weight") else tensor


def _cut_short(weights: Weights) -> Weights:
    """The exporter dies half way."""
    every = list(weights)
    yield from every[: len(every) // 2]
    raise ConnectionError("the transport broke")


SCENARIOS: Final[Mapping[str, Scenario]] = MappingProxyType(
    {
        "asleep": _asleep,
        "cut-short": _after_failed(_cut_short),
        "empty-session": _after_partial(lambda name: False),
        "many-buckets": functools.partial(_smoke, bucket_mib=_ONE_WEIGHT_MIB),
        "one-bucket": functools.partial(_smoke, bucket_mib=_WHOLE_MIB),
        "replica-left-out": _left_out,
        "smoke": _smoke,
        "some-layers": _after_partial(lambda name: ".layers.0." in name),
        "unknown-name": _after_failed(_with_unknown_name),
        "wrong-shape": _after_failed(_with_wrong_shape),
    }
)
"""By name."""
