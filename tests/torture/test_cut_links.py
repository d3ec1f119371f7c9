"""Cut connections in small; ``make torture`` does each 200 times."""

import random
from pathlib import Path

import pytest

from tests.torture import cut_links
from tests.torture.report import no_progress

N_CUTS = 12


def check(outcome: str) -> None:
    """What was asked for was done, or more: a connection may be cut while the replica stops."""
    n_cuts, _, rest = outcome.partition(" cuts, the replica started 2 times: ")
    assert rest, outcome
    assert int(n_cuts) >= N_CUTS


async def test_replication_over_cut_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cut_links, "RESTART_EVERY", N_CUTS // 2)
    check(await cut_links.run_replication(tmp_path, N_CUTS, random.Random(1), no_progress))


async def test_replication_of_hat_event_server_over_cut_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cut_links, "RESTART_EVERY", N_CUTS // 2)
    check(await cut_links.run_replication_hat(tmp_path, N_CUTS, random.Random(4), no_progress))


async def test_relay_over_cut_connections(tmp_path: Path) -> None:
    outcome = await cut_links.run_relay(tmp_path, N_CUTS, random.Random(2), no_progress)
    assert outcome.endswith(", each heard of once")


async def test_relay_to_hat_event_server_over_cut_connections(tmp_path: Path) -> None:
    outcome = await cut_links.run_hat(tmp_path, N_CUTS, random.Random(3), no_progress)
    assert outcome.endswith(", each heard of once")
