"""Metrics of the RSB bridge: counts, and the time line of events by scope."""

from pathlib import Path

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from eventer_bridge.rsb.event import MetaData, RsbEvent, RsbEventId, parse_scope
from mariner.gateway.metrics import RsbLatency
from tests.eventer_bridge.rsb.peers import RawPeer
from tests.eventer_bridge.rsb.samples import SENDER, sample
from tests.support.gateway import gateway
from tests.support.waiting import until


def observed(*metas: MetaData) -> CollectorRegistry:
    latency = RsbLatency()
    for meta in metas:
        event = RsbEvent(RsbEventId(SENDER, 0), parse_scope("/a/b/"), meta=meta)
        latency.observe(parse_scope("/a/"), event)
    registry = CollectorRegistry()
    registry.register(latency)
    return registry


def value(registry: CollectorRegistry, name: str, part: str, **labels: str) -> float | None:
    labels = {"scope": "/a/", "part": part, **labels}
    return registry.get_sample_value(f"mariner_rsb_latency_seconds_{name}", labels)


def test_each_part_of_the_way() -> None:
    registry = observed(MetaData(1_000, 1_100, 1_351, 2_001_351), MetaData(0, 300, 300, 400))
    assert value(registry, "count", "create_to_send") == 2
    assert value(registry, "sum", "create_to_send") == pytest.approx(0.0004)
    assert value(registry, "bucket", "create_to_send", le="0.0001") == 1
    assert value(registry, "bucket", "create_to_send", le="0.0005") == 2
    assert value(registry, "bucket", "send_to_receive", le="0.00025") == 1
    assert value(registry, "bucket", "receive_to_deliver", le="1.0") == 1
    assert value(registry, "bucket", "receive_to_deliver", le="+Inf") == 2
    assert value(registry, "sum", "receive_to_deliver") == pytest.approx(2.0001)


def test_unknown_times_are_left_out_and_negative_ones_count_as_0() -> None:
    registry = observed(MetaData(receive_time=5, deliver_time=6), MetaData(9, 8, 7, 6))
    assert value(registry, "count", "create_to_send") == 1
    assert value(registry, "sum", "create_to_send") == 0
    assert value(registry, "count", "receive_to_deliver") == 2


async def test_a_gateway_tells_them(tmp_path: Path) -> None:
    rsb = {"host": "127.0.0.1", "port": 0, "mode": "server", "scopes_in": ["/robot/"]}
    async with (
        gateway(tmp_path, http=True, core={"rsb": rsb}) as running,
        aiohttp.ClientSession() as session,
    ):

        async def lines() -> list[str]:
            async with session.get(f"http://127.0.0.1:{running.http_port}/metrics") as response:
                return (await response.text()).splitlines()

        async def are_registered() -> bool:
            return 'mariner_events_registered_total{wire="rsb"} 2.0' in await lines()

        assert running.rsb_port is not None
        async with await RawPeer.connect(running.rsb_port) as peer:
            peer.send(sample(1), sample(2))  # on /robot/arm/
            await until(are_registered)
            for line in (
                'mariner_connections{wire="rsb"} 1.0',
                'mariner_frames_total{direction="in",wire="rsb"} 2.0',
                "mariner_rsb_relayed_total 0.0",
                'mariner_rsb_latency_seconds_count{part="receive_to_deliver",scope="/robot/"} 2.0',
            ):
                assert line in await lines()
