"""Both sides of a sync, as the plugin's options ask for them."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from syncguard.checkpoints import Checkpoint
from syncguard.errors import UsageError
from syncguard.factories import blamed, imported
from syncguard.plugin.options import Options
from syncguard.plugin.topologies import parse_topology
from syncguard.protocols import Engine, Learner, lacking
from syncguard.sides import (
    DEFAULT_MODELS,
    ENGINES,
    brought_up,
    make_learner,
    make_model,
    start_cold,
)
from syncguard.stubs import make_stub_engine, make_stub_learner

__all__ = ["Pair", "Sides", "bucket_bytes", "check", "make_pair", "vocabulary"]

Pair = tuple[Learner, Engine]

STUB: Final = "stub"
_BUCKETS: Final = 8
_TAKEN: Final = "parameters are any of checkpoint, model, quantization, path and seed"


class Sides:
    """A learner and an engine, made when they are first asked for, and made again after `close`.

    Args:
        options: Of the plugin.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self._pair: Pair | None = None

    @property
    def learner(self) -> Learner:
        """The learner."""
        return self._made()[0]

    @property
    def engine(self) -> Engine:
        """The engine."""
        return self._made()[1]

    def cold(self) -> Engine:
        """Start another engine of the same kind on the learner's weights; the caller closes it.

        Raises:
            Exception: Whatever keeps a second engine from starting beside the first.
        """
        options = self.options
        if options.engine in ENGINES and options.engine != STUB:
            checkpoint = _checkpoint(options)
            return start_cold(options.engine, checkpoint, self.learner, options.quantization)
        return brought_up(make_pair(options)[1], list(self.learner.weights()))

    def close(self) -> None:
        """Stop the engine, if it runs."""
        pair, self._pair = self._pair, None
        if pair is not None:
            pair[1].close()

    def _made(self) -> Pair:
        """The pair; what goes wrong in somebody's own factory is no defect of ours."""
        name = self.options.engine
        if self._pair is None:
            make = functools.partial(make_pair, self.options)
            self._pair = make() if name in ENGINES else blamed(name, make, f"whose {_TAKEN}")
        return self._pair


def make_pair(options: Options, topology: Mapping[str, Any] | None = None) -> Pair:
    """Build a learner and start an engine.

    Args:
        options: Of the plugin.
        topology: Fields that a stub's topology must have.

    Raises:
        UsageError: The options cannot be followed.
    """
    if options.engine == STUB:
        chosen = parse_topology(options.model, **(topology or {}))
        engine = make_stub_engine(chosen, seed=options.seed)
        return make_stub_learner(chosen, seed=options.seed), engine
    made = _called(_factory(options.engine), options)
    learner: Any
    if isinstance(made, tuple):
        learner, engine = made
    elif hasattr(made, "learner") and hasattr(made, "engine"):
        learner, engine = made.learner, made.engine
    else:
        learner, engine = None, made
    _require(engine, Engine, options.engine)
    if learner is None:
        wire = getattr(engine, "wire", "bf16")
        learner = make_learner(_checkpoint(options), options.quantization, options.seed, wire)
    _require(learner, Learner, options.engine)
    return learner, engine


def check(options: Options) -> None:
    """Look whether the sides can be made, without making them.

    Raises:
        UsageError: There is no such engine or model.
    """
    if options.engine == STUB:
        parse_topology(options.model)
    else:
        _factory(options.engine)


def bucket_bytes(learner: Learner) -> int:
    """A size of buckets of which a whole sync needs about eight."""
    return max(1, sum(tensor.nbytes for _, tensor in learner.weights()) // _BUCKETS)


def vocabulary(learner: Learner) -> int:
    """How many tokens a learner knows: the rows of its embedding."""
    rows = [layer.shape[0] for layer in learner.layers() if layer.kind == "embedding"]
    return rows[0] if rows else 2


def _factory(name: str) -> Callable[..., Any]:
    if name in ENGINES:
        return ENGINES[name]
    return imported(
        name,
        dict.fromkeys([STUB, *ENGINES]),
        "name a function in a module that this pytest can import; 'python -m pytest' and pytest's "
        "option 'pythonpath' add folders",
    )


def _called(factory: Callable[..., Any], options: Options) -> Any:
    """Call a factory with what its parameters name.

    One whose parameters are all of ``checkpoint``, ``model``, ``quantization``, ``path`` and
    ``seed`` gets those by name; any other gets four arguments, as those of
    `syncguard.sides.ENGINES` do.
    """
    offered: dict[str, Callable[[], Any]] = {
        "checkpoint": lambda: _checkpoint(options),
        "model": lambda: options.model,
        "quantization": lambda: options.quantization,
        "path": lambda: options.path,
        "seed": lambda: options.seed,
    }
    wanted = inspect.signature(factory).parameters
    if wanted.keys() <= offered.keys():
        return factory(**{name: offered[name]() for name in wanted})
    return factory(_checkpoint(options), options.quantization, options.path, options.seed)


def _checkpoint(options: Options) -> Checkpoint:
    model = options.model or DEFAULT_MODELS.get(options.engine, DEFAULT_MODELS["vllm"])
    return make_model(options.engine, model, options.quantization)


def _require(made: object, protocol: type, factory: str) -> None:
    if missing := lacking(made, protocol):
        raise UsageError(
            f"engine {factory!r}: its factory gave a {type(made).__name__}, which is no "
            f"{protocol.__name__.lower()}\n"
            f"  expected: an engine, or a pair (learner, engine), as syncguard.protocols says\n"
            f"  got: nothing named {', '.join(missing)}"
        )
