"""What a gateway registers when it is told to stop, so that it is known afterwards."""

import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

from eventer_bridge import chatter
from eventer_bridge.eventer import client as eventer
from eventer_bridge.model import Event, JsonPayload, QueryServerParams, RegisterEvent
from tests.support.gateway import gateway
from tests.torture.clients import connected

WINDOW_S = 3_600
RATE = {
    "module": "eventer_bridge.modules.rate",
    "subscriptions": [["a"], ["event", "communication", "?"]],
    "window_s": WINDOW_S,
}
CORE: dict[str, Any] = {"eventer_server": {"host": "127.0.0.1", "port": 0}}


async def test_connections_and_counts_are_registered_before_the_end(tmp_path: Path) -> None:
    async with (
        gateway(tmp_path, modules=[RATE], core=CORE) as running,
        connected(running) as client,
        contextlib.AsyncExitStack() as stack,
    ):
        assert running.eventer_port is not None
        address = chatter.Address("127.0.0.1", running.eventer_port)
        for name in ("gui", "*", "x" * 250, "gui"):
            await stack.enter_async_context(await eventer.connect(address, name))
        async with await eventer.connect(address, "came and went"):
            pass
        for _ in range(3):
            await client.register([RegisterEvent(("a",), None, None)])
        running.process.terminate()
        await running.process.wait()

    async with gateway(tmp_path) as running, connected(running) as client:
        events = [i async for i in client.query_all(QueryServerParams(1))]
    end = next(n for n, i in enumerate(events) if is_stopped(i))
    told = Counter(("/".join(i.type), str(value(i))) for i in events[:end])
    assert told["event/communication/connected", "None"] == 6
    assert told["event/communication/disconnected", "None"] == 6
    for name, n in (("app", 1), ("gui", 2), ("x" * 250, 1), ("came and went", 1)):
        assert told[f"event/1/eventer/{name}", "CONNECTED"] == n
        assert told[f"event/1/eventer/{name}", "DISCONNECTED"] == n
    counts = {i.type[-1]: value(i) for i in events[:end] if i.type[0] == "rate"}
    assert {name: i["count"] for name, i in counts.items()} == {
        "a": 3,
        "connected": 6,
        "disconnected": 6,
    }
    assert all(0 < i["window_s"] < WINDOW_S for i in counts.values())


def value(event: Event) -> Any:
    return None if not isinstance(event.payload, JsonPayload) else event.payload.value()


def is_stopped(event: Event) -> bool:
    return event.type == ("event", "1", "engine") and value(event) == "STOPPED"
