"""Modules and conditions of a gateway, from configuration to client."""

import asyncio
import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from eventer_bridge.errors import ConfigurationError
from eventer_bridge.model import (
    Event,
    JsonPayload,
    QueryLatestParams,
    QueryTimeseriesParams,
    RegisterEvent,
)
from mariner import client
from mariner.client import Client
from mariner.gateway import config_file
from tests.support.gateway import Gateway, gateway
from tests.support.inprocess import running_gateway
from tests.support.peer import RawPeer, event, register_req

MODULES: list[dict[str, Any]] = [
    {
        "module": "eventer_bridge.modules.threshold",
        "thresholds": [
            {
                "subscriptions": [["plant", "?", "temperature"]],
                "path": ["value"],
                "limit": 80,
                "hysteresis": 2,
            }
        ],
    },
    {
        "module": "eventer_bridge.modules.rate",
        "subscriptions": [["plant", "*"]],
        "window_s": 0.2,
    },
    {"module": "eventer_bridge.modules.audit", "subscriptions": [["plant", "*"]]},
]


async def connect(running: Gateway, *subscriptions: tuple[str, ...]) -> Client:
    return await client.connect(
        running.host,
        running.port,
        client_name="app",
        client_token="secret",
        subscriptions=subscriptions,
    )


def reading(value: float) -> RegisterEvent:
    return RegisterEvent(("plant", "u1", "temperature"), None, JsonPayload.of({"value": value}))


def value_of(found: Event) -> Any:
    assert isinstance(found.payload, JsonPayload)
    return found.payload.value()


async def test_all_three_modules_in_a_gateway(tmp_path: Path) -> None:
    async with gateway(tmp_path, modules=MODULES) as running:
        app = await connect(running)
        watcher = await connect(running, ("alarm", "*"), ("rate", "*"), ("audit",))
        for value in (81, 82, 77):
            # the answer has what was asked for, not what modules added
            assert len(await app.register([reading(value)])) == 1

        seen: dict[str, list[Any]] = {"alarm": [], "rate": [], "audit": []}
        notifications = watcher.events()
        async with asyncio.timeout(60):
            while sum(i["count"] for i in seen["rate"]) < 3 or seen["rate"][-1]["count"] != 0:
                for found in await anext(notifications):
                    seen[found.type[0]].append(value_of(found))
        assert [(i["state"], i["value"]) for i in seen["alarm"]] == [
            ("RAISED", 81),
            ("CLEARED", 77),
        ]
        assert [(i["client"], i["source_type"], i["events"]) for i in seen["audit"]] == [
            ("app", "CONNECTION", 1)
        ] * 3
        assert sum(i["count"] for i in seen["rate"]) == 3

        await app.register([reading(90)])
        await app.async_close()
        await watcher.async_close()

    # the alarm is known after a restart
    async with gateway(tmp_path, modules=MODULES) as running:
        app = await connect(running)
        await app.register([reading(91)])
        assert await alarm_states(app) == ["RAISED", "CLEARED", "RAISED"]
        await app.register([reading(1)])
        assert await alarm_states(app) == ["RAISED", "CLEARED", "RAISED", "CLEARED"]
        [latest] = (await app.query(QueryLatestParams([("event", "1", "engine")]))).events
        assert value_of(latest) == "STARTED"
        await app.async_close()


async def alarm_states(app: Client) -> list[str]:
    found: Sequence[Event] = (await app.query(QueryTimeseriesParams([("alarm", "*")]))).events
    return [value_of(i)["state"] for i in found[::-1]]


async def test_a_condition_of_a_gateway_refuses() -> None:
    condition = {"type": "json", "data_path": ["value"], "data_type": "number"}
    core = {
        "server_id": 1,
        "backend": {
            "type": "memory",
            "conditions": [{"subscriptions": [["plant", "*"]], "condition": condition}],
        },
    }
    for modules in ([], MODULES):
        async with (
            running_gateway(event_core={**core, "modules": modules}) as running,
            await RawPeer.init(running.mariner.port) as peer,
        ):
            for register_id, value, is_good in [
                (1, {"value": 1}, True),
                (2, {"value": "x"}, False),
            ]:
                peer.send(register_req(register_id, event("plant", "a", value=value)))
                answer = await peer.receive()
                assert (answer["register_id"], answer["success"]) == (register_id, is_good)


CONF: dict[str, Any] = {
    "name": "gateway",
    "mariner": {"host": "127.0.0.1", "port": 0},
    "event_core": {"server_id": 1, "backend": {"type": "memory"}, "modules": MODULES},
    "clients": [],
}


def problems(module: dict[str, Any]) -> list[str]:
    conf = copy.deepcopy(CONF)
    conf["event_core"]["modules"] = [module]
    with pytest.raises(ConfigurationError) as raised:
        config_file.parse(conf, "gateway.yaml")
    return [i.removeprefix("gateway.yaml: ") for i in str(raised.value).splitlines()]


def test_a_good_configuration() -> None:
    core = config_file.parse(CONF, "gateway.yaml").event_core
    assert core is not None
    assert list(core.modules) == MODULES


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ({}, ["event_core.modules[0].module: missing, expected name of its Python module"]),
        (
            {"module": "no.such.module"},
            [
                "event_core.modules[0].module: cannot import 'no.such.module':"
                " ModuleNotFoundError: No module named 'no'"
            ],
        ),
        (
            {"module": "json"},
            ["event_core.modules[0].module: 'json' is not an engine module: it has no json_schema"],
        ),
        (
            {"module": "eventer_bridge.modules.threshold"},
            ["event_core.modules[0].thresholds: missing, expected the thresholds"],
        ),
        (
            {
                "module": "eventer_bridge.modules.threshold",
                "thresholds": [
                    {"subscriptions": [["a"]], "limit": "high", "hysteresis": -1, "x": 1}
                ],
            },
            [
                "event_core.modules[0].thresholds[0].hysteresis: -1: expected at least 0",
                "event_core.modules[0].thresholds[0].limit: 'high': expected number",
                "event_core.modules[0].thresholds[0].x: unknown key, expected one of"
                " subscriptions, path, limit, hysteresis, alarm_prefix",
            ],
        ),
        (
            {"module": "eventer_bridge.modules.threshold", "thresholds": []},
            ["event_core.modules[0].thresholds: an array: expected at least 1 in it"],
        ),
        (
            {
                "module": "eventer_bridge.modules.rate",
                "subscriptions": [["a"]],
                "window_s": 0,
                "max_types": 1_000_000,
                "prefix": ["rate", "*"],
            },
            [
                "event_core.modules[0].max_types: 1000000: expected at most 10000",
                'event_core.modules[0].prefix[1]: \'*\': expected a segment that is not "?" or "*"',
                "event_core.modules[0].window_s: 0: expected at least 0.1",
            ],
        ),
        (
            {"module": "eventer_bridge.modules.audit", "event_type": ["a"] * 33},
            ["event_core.modules[0].event_type: an array: expected at most 32 in it"],
        ),
    ],
)
def test_wrong_configurations(module: dict[str, Any], expected: list[str]) -> None:
    assert problems(module) == expected
