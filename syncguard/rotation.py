"""Which layers a budgeted probe looks at: all of them in turn."""

from collections import deque
from collections.abc import Collection, Sequence

from syncguard.observations import EngineLayer, Rotation

__all__ = ["Turns"]


class Turns:
    """Hands out layers in turn, so that every layer is probed once in every few syncs.

    Args:
        layers: Layers to probe at a sync, at least one.
    """

    def __init__(self, layers: int) -> None:
        self._layers = max(1, layers)
        self._next = 0
        self._recent: deque[tuple[str, ...]] = deque()

    def take(self, table: Sequence[EngineLayer], looked_up: Collection[str] = ()) -> Rotation:
        """The layers of the next sync.

        Args:
            table: The engine's layer table.
            looked_up: Weights that are looked up, not multiplied with; layers of only these take
                no turn.
        """
        rows = {row.module: row for row in table if not set(row.parts) <= set(looked_up)}
        modules = list(rows)
        count = min(self._layers, len(modules))
        places = range(self._next, self._next + count)
        chosen = {modules[place % len(modules)]: place // len(modules) for place in places}
        self._next += count
        syncs = -(-len(modules) // max(1, count))
        self._recent.append(tuple(chosen))
        while len(self._recent) > syncs:
            self._recent.popleft()
        covered = {module for turn in self._recent for module in turn} & set(modules)
        names = tuple(dict.fromkeys(part for row in rows.values() for part in row.parts))
        return Rotation(chosen, names, len(modules), len(covered), syncs)
