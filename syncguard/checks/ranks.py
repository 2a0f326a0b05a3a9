"""C7 over ranks: whoever took part in the sync is heard, and whoever is heard took part."""

from collections.abc import Sequence

from syncguard.checks.judgement import Judgement, counted, failed, not_run, passed
from syncguard.checks.registry import check
from syncguard.observations import EngineLayer, SyncRecord
from syncguard.verdict import Coverage, Reason, explain

__all__ = ["all_ranks"]


@check("ranks", "C7")
def all_ranks(engine_layers: Sequence[EngineLayer], sync_record: SyncRecord) -> Judgement:
    """Compare the ranks that wrote weights with the ranks that report their layers.

    Where ranks share a weight, what one of them says is easily taken for the whole.
    """
    heard = {row.rank for row in engine_layers}
    wrote = {row.rank for row in sync_record.loaded}
    if not heard or not wrote:
        return not_run(Reason.MISSING_INPUT, "no rank reported a layer, or none wrote a weight")
    coverage = Coverage(len(heard & wrote), len(heard | wrote))
    if heard == wrote:
        return passed(
            f"{counted(len(heard), 'rank', 'ranks')} wrote weights and reported layers",
            coverage,
            measured=0,
            bound=0,
        )
    silent, idle = sorted(wrote - heard), sorted(heard - wrote)
    got = [
        *([f"no layer of rank {', '.join(map(str, silent))} was reported"] if silent else []),
        *([f"rank {', '.join(map(str, idle))} wrote no weight"] if idle else []),
    ]
    return failed(
        explain(
            "the ranks that took part in the sync are not those that report",
            where=f"sync {sync_record.number}",
            expected="layers and writes of every rank",
            got="; ".join(got),
            cause="a worker does not answer, or was left out of the sync",
            todo="treat what a silent rank holds as unchecked; see its log",
        ),
        coverage,
        subject=f"rank {(silent + idle)[0]}",
        measured=len(silent) + len(idle),
        bound=0,
    )
