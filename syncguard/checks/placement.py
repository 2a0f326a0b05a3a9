"""C13: placement and configuration of the sampler are unchanged by a sync."""

from collections.abc import Sequence
from dataclasses import fields

from syncguard.checks.judgement import Judgement, counted, failed, listed, not_run, passed
from syncguard.checks.registry import check
from syncguard.observations import EngineLayer
from syncguard.verdict import Coverage, Reason, explain

__all__ = ["placement"]


@check("placement", "C13")
def placement(
    engine_layers_before: Sequence[EngineLayer], engine_layers: Sequence[EngineLayer]
) -> Judgement:
    """Compare the layer table before and after: methods, kernels, grids, parts, ranks.

    A sync that rebuilds a layer may choose its kernel from a configuration that is another by
    then, or place experts as they were at start.
    """
    before, after = _by_place(engine_layers_before), _by_place(engine_layers)
    if not before or not after:
        return not_run(Reason.MISSING_INPUT, "the engine reported no layers")
    wrong = {
        f"rank{rank}:{module}": _change(before.get((rank, module)), after.get((rank, module)))
        for rank, module in sorted(before.keys() | after.keys())
        if before.get((rank, module)) != after.get((rank, module))
    }
    coverage = Coverage(len(before.keys() & after.keys()), len(before.keys() | after.keys()))
    if not wrong:
        return passed(
            f"{counted(len(before), 'layer is', 'layers are')} built and placed as before",
            coverage,
            measured=0,
            bound=0,
        )
    place, text = next(iter(wrong.items()))
    return failed(
        explain(
            f"the sync changed how {counted(len(wrong), 'layer is', 'layers are')} built or placed",
            where=listed(list(wrong)),
            expected="method, kernel, grid and parts of before the sync",
            got=f"{place}: {text}",
            cause="a layer was built again from a configuration that is another at this time, or "
            "experts were placed by the map of the start",
            todo="keep kernel and placement across syncs; move experts only while none is open",
        ),
        coverage,
        subject=place,
        measured=len(wrong),
        bound=0,
        evidence=wrong.items(),
    )


def _by_place(rows: Sequence[EngineLayer]) -> dict[tuple[int, str], EngineLayer]:
    return {(row.rank, row.module): row for row in rows}


def _change(before: EngineLayer | None, after: EngineLayer | None) -> str:
    if before is None or after is None:
        return "is new" if before is None else "is gone"
    return "; ".join(
        f"{field.name} {getattr(before, field.name)!r} became {getattr(after, field.name)!r}"
        for field in fields(EngineLayer)
        if getattr(before, field.name) != getattr(after, field.name)
    )
