"""Runs the suites that are wanted, one after the other."""

from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Final, Protocol

from tests.perf import detours, fanout, forms, group, memory, millions, replay, rounds, rsb, spark
from tests.perf.report import Measure
from tests.perf.scenarios import FULL, Sizes


class Suite(Protocol):
    """A module that measures some rows."""

    def measures(self, sizes: Sizes, /) -> list[Measure]:
        """The rows, without values."""

    def run(self, directory: Path, sizes: Sizes, wanted: Mapping[str, Measure]) -> Awaitable[None]:
        """Measure, and add values to each of the wanted rows, of which there is one at least.

        Raises:
            ChildError: a server or a client failed; an answer was not right.
        """


SUITES: Final[dict[str, Suite]] = {"rounds": rounds, "fanout": fanout, "memory": memory}
"""What ``make bench`` runs: ours and others."""

SLOW_SUITES: Final[dict[str, Suite]] = {
    "detours": detours,
    "forms": forms,
    "group": group,
    "replay": replay,
    "rsb": rsb,
    "millions": millions,
    "spark": spark,
}
"""What ``make bench-slow`` runs: ours alone, and the most of it against itself."""


def names(suites: Mapping[str, Suite]) -> list[str]:
    """Names of their rows."""
    return [i.name for suite in suites.values() for i in suite.measures(FULL)]


async def run(directory: Path, sizes: Sizes, wanted_names: frozenset[str]) -> list[Measure]:
    """Run the suites that have the rows.

    Args:
        directory: empty; stores go there.
        sizes: ``scenarios.FULL`` or ``scenarios.SMALL``.
        wanted_names: which, out of :func:`names`.

    Returns:
        The rows, in the order of the tables.

    Raises:
        ChildError: a server or a client failed; an answer was not right.
    """
    found: list[Measure] = []
    for name, suite in (SUITES | SLOW_SUITES).items():
        wanted = {i.name: i for i in suite.measures(sizes) if i.name in wanted_names}
        if wanted:
            path = directory / name
            path.mkdir()
            await suite.run(path, sizes, wanted)
            found += wanted.values()
    return found
