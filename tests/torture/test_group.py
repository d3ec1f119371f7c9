"""A group whose gateways and database fail, in small; ``make torture`` does it 200 times."""

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.postgresql import Cluster, cluster
from tests.torture import group, group_site
from tests.torture.group_faults import kill_primary, stop_active
from tests.torture.report import no_progress

pytestmark = pytest.mark.xdist_group("postgresql")


@pytest.fixture(scope="module")
def servers() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


@pytest.fixture(autouse=True)
def small(servers: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_site, "PROGRAM", "mariner")
    monkeypatch.setattr(group, "cluster", lambda: contextlib.nullcontext(servers))
    monkeypatch.setattr(group, "N_MACHINES", 2)
    monkeypatch.setattr(group, "TAKEOVER_S", 1.0)


async def test_gateways_and_databases_that_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "OF_GATEWAYS", {stop_active: 1})
    monkeypatch.setattr(group, "OF_DATABASE", {kill_primary: 1})
    outcome = await group.run(tmp_path, 2, random.Random(7), no_progress)
    assert outcome.startswith("2 rounds (1 kill_primary, 1 stop_active): ")


async def test_a_database_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "AWAY_S", 3.0)
    monkeypatch.setattr(group, "BACK_S", 60.0)
    outcome = await group.run_away(tmp_path, 1, random.Random(1), no_progress)
    assert ": nothing was acknowledged meanwhile" in outcome
