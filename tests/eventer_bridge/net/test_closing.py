"""Why a connection ends, as people and logs are told; how it ends is in ``test_stream``."""

from typing import Any

import pytest

from eventer_bridge import limits
from eventer_bridge.net.stats import CloseReason
from tests.eventer_bridge.chatter.peers import connected, listening

LOST = CloseReason.LOST
MOST = limits.MAX_LOG_CHARACTERS


@pytest.mark.parametrize(
    ("given", "text", "logged"),
    [
        ({}, "connection lost", {"reason": "connection lost"}),
        (
            {"detail": "d"},
            "connection lost: d",
            {"reason": "connection lost", "detail": "d"},
        ),
        ({"text": "reset"}, "reset", {"reason": "reset"}),
        ({"text": "reset", "detail": "d"}, "reset", {"reason": "reset", "detail": "d"}),
        (
            {"detail": "d" * (MOST + 1)},
            "connection lost: " + "d" * MOST,
            {"reason": "connection lost", "detail": "d" * MOST},
        ),
        ({"text": "t" * (MOST + 1)}, "t" * (MOST + 1), {"reason": "t" * MOST}),
    ],
)
async def test_why_a_connection_ended(
    given: dict[str, Any], text: str, logged: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    async with listening() as there, connected(there.address) as here:
        connection = here.connection
        assert here.connection.close_text is None
        with caplog.at_level("DEBUG", connection.mlog.name):
            connection.close(LOST, **given)
            connection.close(CloseReason.CLOSED, detail="too late")
        assert connection.close_reason is LOST
        assert connection.close_text == text
    closings = [i.__dict__ for i in caplog.records if i.message == "closing connection"]
    [record] = [i for i in closings if i["peer"] == connection.peer]  # not that of the other end
    assert {k: v for k, v in record.items() if k in ("reason", "detail")} == logged
