"""Exactly once in small; ``make torture`` does it 500 times."""

import random
import re
from pathlib import Path

from tests.torture import edge, edge_pair
from tests.torture.report import no_progress


async def test_every_event_once_from_writers_to_readers(tmp_path: Path) -> None:
    outcome = await edge.run(tmp_path, 6, random.Random(16), no_progress)
    assert re.match(
        r"6 rounds, \d kills of the gateway, \d+ of writers and readers, \d+ conn", outcome
    )


async def test_a_pair_loses_nothing_and_each_gateway_stores_once(tmp_path: Path) -> None:
    outcome = await edge_pair.run(tmp_path, 1, random.Random(2), no_progress)
    assert re.match(r"1 rounds, \d take-overs, \d kills of gateways, \d stores lost", outcome)
