"""The order of backups: by the state of the store that each one has, not by its name.

A name is a time, by a clock that may have been wrong. What a store wrote is counted within a
history, and each history names those that it continues (``eventer_bridge.backends.history``). So
the backups of one store have an order; those of other stores, and of histories that a restore left
behind, have none among them.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec


class StoreState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state of a store.

    Attributes:
        histories: those that it continues, oldest first, and its own.
        sequence: rows that were written until then.
    """

    histories: tuple[str, ...]
    sequence: int

    @property
    def history(self) -> str | None:
        """Its own history; None: the store has no name for it yet."""
        return self.histories[-1] if self.histories else None


States: TypeAlias = Mapping[str, StoreState]
"""Of backups, by their names."""


def in_order(positions: States, histories: Sequence[str]) -> list[str]:
    """Backups of the store that has these histories, the oldest state first.

    Args:
        positions: of all backups.
        histories: of one of them: those that continue it are left out, as are other stores.
    """
    ages = {history: age for age, history in enumerate(histories)}
    found = [
        (ages[position.history], position.sequence, name)
        for name, position in positions.items()
        if position.history is not None and position.history in ages
    ]
    return [name for *_, name in sorted(found)]


def newest(positions: States) -> list[str]:
    """The backup with the newest state of each store, or of each history that nothing continues."""
    continued = {i for position in positions.values() for i in position.histories[:-1]}
    heads = {
        position.history: position.histories
        for position in positions.values()
        if position.history is not None and position.history not in continued
    }
    return sorted(in_order(positions, histories)[-1] for histories in heads.values())


def surplus(positions: States, made: str, n_kept: int) -> list[str]:
    """The backups of a store that are to be removed, the oldest state first.

    Args:
        positions: of all backups.
        made: the one that was just made, which is kept, whatever its state.
        n_kept: how many of this store are kept, at least that one and the newest state.
    """
    ordered = in_order(positions, positions[made].histories)
    if not ordered:  # the history of its store has no name
        return []
    kept = {made, ordered[-1]}
    for name in reversed(ordered):
        if len(kept) < n_kept:
            kept.add(name)
    return [name for name in ordered if name not in kept]
