"""What operators are told of a group, and that another member becomes active when they ask."""

import asyncio
import json
import logging
import re
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from eventer_bridge.errors import ConfigurationError
from eventer_bridge.group import limits as group_limits
from eventer_bridge.group.log import MemberState
from mariner.cli import main
from mariner.gateway import counts, group_requests
from mariner.gateway.counts import StatusReport
from mariner.gateway.gateway import Gateway
from mariner.gateway.status import GatewayStatus, GroupStatus
from tests.support.inprocess import metrics_of, running_gateway
from tests.support.member_gateway import TAKEOVER_S, make_group, member_gateway
from tests.support.peer import RawPeer, event, register_req
from tests.support.postgresql import Cluster
from tests.support.waiting import until

HTTP = {"host": "127.0.0.1", "port": 0}


@pytest.fixture(autouse=True)
def shorter_periods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_limits, "STEP_DOWN_S", 0.2)
    monkeypatch.setattr(group_limits, "TELL_PERIOD_S", 0.1)


async def status_of(gateway: Gateway) -> GatewayStatus:
    return await StatusReport(gateway).collect()


async def group_of(gateway: Gateway) -> GroupStatus:
    found = (await status_of(gateway)).group
    assert found is not None
    return found


async def until_active(gateway: Gateway) -> None:
    await until(lambda: gateway.core.hindrance is None)


async def until_told(gateway: Gateway, members: str) -> None:
    """Wait until it knows these members, with all that there is."""

    async def is_told() -> bool:
        group = await group_of(gateway)
        found = sorted((i.name, i.position) for i in group.members)
        return found == [(i, group.acknowledged) for i in members]

    await until(is_told)


async def command(gateway: Gateway, folder: Path) -> tuple[int, str]:
    """``mariner group step-down``: its exit code, and what it printed."""
    [control] = gateway.controls
    conf = folder / "gateway.json"
    conf.write_text(json.dumps({"control": str(control._path)}))
    control.configuration = conf
    done = await asyncio.to_thread(
        CliRunner().invoke, main, ["group", "step-down", "--conf", str(conf)]
    )
    return done.exit_code, done.output


async def test_members_and_a_step_down(
    postgresql: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "audit")
    dsn = postgresql.dsn()
    await make_group(dsn)
    async with member_gateway(tmp_path, dsn, "a", http=HTTP) as a:
        await until_active(a)
        async with member_gateway(tmp_path, dsn, "b", http=HTTP) as b:
            async with await RawPeer.init(a.mariner.port) as peer:
                assert (await peer.request(register_req(1, event("x"))))["success"]
            for gateway in (a, b):
                await until_told(gateway, "ab")
            assert a.member is not None
            last = a.member.position
            active, follower = await group_of(a), await group_of(b)
            assert (active.member, active.is_active, active.lag_records) == ("a", True, 0)
            assert (follower.name, follower.member, follower.is_active) == ("plant", "b", False)
            assert (follower.active, follower.epoch, follower.takeovers) == ("a", 1, 0)
            assert (follower.position, follower.acknowledged) == (last, last)
            assert (follower.lag_records, follower.lag_s, follower.log_records) == (0, 0, last)
            assert follower.since is not None
            assert follower.since == active.since
            assert {i.name: i.is_active for i in follower.members} == {"a": True, "b": False}
            assert (await status_of(b)).not_ready == "member 'a' of the group is active"
            await check_metrics(b, last)
            told = MemberState("a", 1, 3.0, 5.0), MemberState("b", 1, 4.0, 5.0)
            assert lags(a, *told) == {"a": (last, 0, 0, 3), "b": (1, last - 1, 5, 4)}
            assert lags(b, *told) == {"a": (1, 0, 0, 3), "b": (last, 0, 0, 4)}

            code, text = await command(b, tmp_path)
            assert (code, text) == (
                1,
                "mariner: error: member 'b' is not active, member 'a' is\n",
            )
            code, text = await command(a, tmp_path)
            assert code == 0
            assert re.fullmatch(r"member 'b' is active after \d+\.\d s, epoch 2\n", text)
            await until_active(b)
            assert b.member is not None
            assert b.member.takeovers == 0
            await b.member._log.async_close()  # so that it cannot release the epoch
        await until_active(a)
        assert (await group_of(a)).takeovers == 1
        code, text = await command(a, tmp_path)
        assert code == 1
        again = r"no other member became active within \d+\.\d s: member 'a' is active again"
        assert re.fullmatch(f"mariner: error: {again}\n", text)
    asked = [i.__dict__ for i in caplog.records if i.msg == "step down"]
    assert [(i["member"], i["epoch"]) for i in asked] == [("a", 1), ("a", 3)]


def lags(gateway: Gateway, *told: MemberState) -> dict[str, tuple[int, int, int, int]]:
    """What it makes of what members told of themselves."""
    assert gateway.member is not None
    gateway.member.members, gateway.member.members_at_s = told, time.monotonic()
    members = counts.tree(gateway)["groups"]["plant"]["members"]
    names = "position", "lag_records", "lag_s", "seen_s"
    return {i: tuple(int(its[name]) for name in names) for i, its in members.items()}  # type: ignore[misc]


async def check_metrics(follower: Gateway, last: int) -> None:
    """Each of them, of b."""
    found = await metrics_of(follower, "mariner_group_")
    times = {i: found.pop(i) for i in [*found] if "seconds" in i}
    assert found == {
        'active{group="plant"}': 0,
        'epoch{group="plant"}': 1,
        'takeovers_total{group="plant"}': 0,
        'position{group="plant"}': last,
        'acknowledged_position{group="plant"}': last,
        'lag_records{group="plant"}': 0,
        'log_records{group="plant"}': last,
        'members{group="plant"}': 2,
        'member_active{group="plant",member="a"}': 1,
        'member_active{group="plant",member="b"}': 0,
        'member_position{group="plant",member="a"}': last,
        'member_position{group="plant",member="b"}': last,
        'member_lag_records{group="plant",member="a"}': 0,
        'member_lag_records{group="plant",member="b"}': 0,
    }
    assert times.pop('changed_timestamp_seconds{group="plant"}') > 1e9
    assert times.keys() == {
        'lag_seconds{group="plant"}',
        'silent_seconds{group="plant"}',
        *(
            f'member_{i}_seconds{{group="plant",member="{j}"}}'
            for i in ("lag", "seen")
            for j in "ab"
        ),
    }
    assert max(times.values()) < 60


async def test_of_a_log_that_does_not_answer(postgresql: Cluster, tmp_path: Path) -> None:
    dsn = postgresql.dsn()
    await make_group(dsn, "silent")
    async with member_gateway(tmp_path, dsn, "a", "silent") as a:
        await until_active(a)
        assert a.member is not None
        before_s = a.member.changed_at_s
        await until(lambda: a.member.changed_at_s > before_s)  # type: ignore[union-attr]  # it beats
        before_s, state = a.member.changed_at_s, a.member.state
        assert state is not None
        a.member._note(state)
        assert a.member.changed_at_s == before_s
        await until_told(a, "a")
        postgresql.primary.pause()
        try:
            await until(lambda: a.core.hindrance is not None)
            found = await status_of(a)
        finally:
            postgresql.primary.resume()
        assert found.group is not None
        assert found.group.silent_s >= TAKEOVER_S / 2
        [member] = found.group.members
        assert member.seen_s >= TAKEOVER_S / 2  # nobody was, meanwhile
        assert str(found.not_ready).startswith("the log of the group cannot be used: PostgreSQL at")
        await until_active(a)
        assert (await group_of(a)).epoch == 1


async def test_without_a_group() -> None:
    async with running_gateway() as gateway:
        assert (await status_of(gateway)).group is None
        text = "event_core.group: missing: this gateway belongs to no group"
        with pytest.raises(ConfigurationError, match=text):
            await group_requests.answer(gateway, {})
        with pytest.raises(ConfigurationError, match="step_down: Expected `object`"):
            await group_requests.answer(gateway, 5)
