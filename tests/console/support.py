"""The console in a process of its own, as an operator starts it."""

import contextlib
import json
import re
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp

from eventer_bridge.core import tokens
from eventer_bridge.model import Event, EventId, EventType, Payload, Timestamp
from tests.support import process as processes
from tests.support.gateway import Gateway

PASSWORD: Final = "a random one"

OPERATOR: Final = {
    "name": "operator",
    "password": tokens.sha256_text(PASSWORD),
    "may_register": True,
}
GUEST: Final = {"name": "guest", "password": tokens.sha256_text("guest")}

_LISTENING: Final = re.compile(r"console: listening: (\S+)")


class Console(NamedTuple):
    """A running console."""

    url: str
    process: Process
    output: Path


def watched(gateway: Gateway, **keys: Any) -> dict[str, Any]:
    """A gateway of the tests in the configuration of a console."""
    return {
        "name": "gateway",
        "host": gateway.host,
        "port": gateway.port,
        "client": "app",
        "token": "secret",
        "metrics": f"http://{gateway.host}:{gateway.http_port}/metrics",
        **keys,
    }


@contextlib.asynccontextmanager
async def console(
    directory: Path,
    gateways: Sequence[dict[str, Any]],
    *,
    program: str = "mariner_console",
    users: Sequence[dict[str, Any]] = (OPERATOR, GUEST),
    **listen: Any,
) -> AsyncIterator[Console]:
    """Run it; on the way out SIGTERM, which has to give exit code 0."""
    conf = {
        "listen": {"port": 0, **listen},
        "users": [*users],
        "gateways": [*gateways],
    }
    path = directory / "console.json"
    path.write_text(json.dumps(conf))
    output = directory / "console.log"
    async with processes.child(program, "--conf", str(path), output=output) as process:

        async def probe() -> str | None:
            found = _LISTENING.search(processes.tail(output))
            return found and found[1]

        yield Console(await processes.wait_ready(process, output, probe), process, output)


async def log_in(
    session: aiohttp.ClientSession, url: str, *, password: str = PASSWORD, origin: str | None = None
) -> tuple[int, str]:
    """Send the form; returns status and body of the answer."""
    fields = {"name": "operator", "password": password}
    headers = {"Origin": origin or url.rstrip("/")}
    async with session.post(
        f"{url}login", data=fields, headers=headers, allow_redirects=False
    ) as answer:
        return answer.status, await answer.text()


def event(
    event_type: EventType, payload: Payload | None = None, *, session: int = 1, s: int = 0
) -> Event:
    """An event as a gateway would send it."""
    return Event(EventId(1, session, 1), event_type, Timestamp(s, 0), None, payload)
