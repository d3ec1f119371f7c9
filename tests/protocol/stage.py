"""The gateway of a dialogue, and what happens to it: in the process of the test."""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, Self

import pytest
import yaml

from eventer_bridge import limits
from eventer_bridge.model import EventId, QueryTimeseriesParams
from mariner import limits as mariner_limits
from mariner.gateway import config_file, cursor_requests
from mariner.gateway.gateway import Gateway, create
from tests.eventer_bridge.backends.faults import failing_for_good
from tests.protocol import dialogues
from tests.protocol.dialogues import Bindings, Dialogue, Step
from tests.support.peer import RawPeer
from tests.support.waiting import until

SILENCE: Final = "60 s pass in silence"
CONFIGURATION: Final = dialogues.VECTORS / "gateway.yaml"


def configuration() -> dict[str, Any]:
    """What the vectors are run against, on a free port."""
    conf: dict[str, Any] = yaml.safe_load(CONFIGURATION.read_text(encoding="utf-8"))
    conf["mariner"]["port"] = 0
    return conf


class Stage:
    """A gateway, and its clients by their letters; a context manager."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._gateway: Gateway
        self._peers: dict[str, RawPeer] = {}
        self._known: Bindings = {}
        self._ending: list[asyncio.Task[None]] = []
        patch.setattr(limits, "RETENTION_MIN_PERIOD_S", 0.01)
        patch.setattr(limits, "RETENTION_PERIOD_S", 0.02)
        patch.setattr(limits, "SWEEP_PERIOD_S", 0.02)
        patch.setattr(limits, "STORE_RETRY_PERIOD_S", 0.02)
        self._fault = contextlib.ExitStack()

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for peer in self._peers.values():
            peer.writer.close()
        self._fault.close()
        await self._gateway.async_close()
        await asyncio.gather(*self._ending)

    async def _start(self) -> None:
        self._gateway = await create(config_file.parse(configuration(), "vectors"))

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._gateway.mariner.port

    async def run(self, dialogue: Dialogue) -> None:
        """Run a dialogue; AssertionError: the gateway says something else, or more."""
        self._known = {}
        if any(step.stage == SILENCE for step in dialogue.steps):
            self._patch.setattr(mariner_limits, "SERVER_PING_DELAY_S", 0.0)
        for number, step in enumerate(dialogue.steps, 1):
            try:
                await self._take(step)
            except (AssertionError, asyncio.IncompleteReadError, KeyError) as e:
                raise AssertionError(f"{dialogue.name}, step {number}: {e!r}") from e
        for peer in self._peers.values():
            await self._end(peer)
        self._peers = {}
        dialogues.check_order(self._known)

    async def _end(self, peer: RawPeer) -> None:
        """Stop sending: whatever the gateway still has to say comes, and then its end."""
        peer.writer.write_eof()
        with contextlib.suppress(asyncio.IncompleteReadError):
            more = await peer.receive_answer()
            raise AssertionError(f"the gateway says more: {more}")
        peer.writer.close()

    async def _take(self, step: Step) -> None:
        if step.stage:
            await self._happen(dialogues.filled(step.stage, self._known))
            return
        if step.peer not in self._peers:
            self._peers[step.peer] = await RawPeer.connect(self.port)
        peer = self._peers[step.peer]
        if isinstance(step.send, dict):
            peer.send(dialogues.filled(step.send, self._known))
        elif isinstance(step.receive, dict):
            dialogues.match(step.receive, await peer.receive(), self._known)
        else:
            if step.closes == "gateway":
                assert await peer.is_closed_by_server()
            self._peers.pop(step.peer).writer.close()

    # --- what happens -----------------------------------------------------------------------

    async def _happen(self, text: str) -> None:
        for pattern, happen in self._scenes.items():
            if found := re.fullmatch(pattern, text):
                await happen(self, *found.groups())
                return
        raise AssertionError(f"nobody knows how to: {text}")

    async def _be_silent(self) -> None:
        pass  # for the client: the gateway's patience ended when it connected

    async def _stop(self) -> None:
        self._ending.append(asyncio.ensure_future(self._gateway.async_close()))

    async def _start_anew(self) -> None:
        await self._gateway.async_close()
        await self._start()

    async def _fail(self) -> None:
        await until(lambda: not self._gateway.core.pending_events)  # also who connected
        self._fault.enter_context(failing_for_good())

    async def _work_again(self) -> None:
        self._fault.close()

    async def _delete(self, *numbers: str) -> None:
        gone = QueryTimeseriesParams(ids=[EventId(*map(int, numbers))])

        async def is_gone() -> bool:
            return not (await self._gateway.core.query(gone)).events

        await until(is_gone)

    async def _redeliver(self, client: str, cursor: str, *numbers: str) -> None:
        cursors = self._gateway.core.cursors
        assert cursors is not None
        ids = [dict(zip(("server", "session", "instance"), map(int, numbers), strict=True))]
        request = {"do": "redeliver", "client": client, "name": cursor, "ids": ids}
        await cursor_requests.answer(cursors, request)

    _scenes: Final[dict[str, Callable[..., Awaitable[None]]]] = {
        SILENCE: _be_silent,
        "the gateway stops": _stop,
        "the gateway is started anew, with an empty store": _start_anew,
        "the disk fails": _fail,
        "the disk works again": _work_again,
        r"retention deletes (-?\d+)/(-?\d+)/(-?\d+)": _delete,
        r"mariner cursors redeliver (\S+) (\S+) (-?\d+)/(-?\d+)/(-?\d+)": _redeliver,
    }
