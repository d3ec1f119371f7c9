"""What a client with cursors can do: give them names, and park events."""

import urllib.request
from typing import Any, Final

from tests.torture.attacks import wire
from tests.torture.attacks.attack import Attack, Facts, Limits, Target
from tests.torture.attacks.wire import Peer, event, tried, until

_PARKING_S: Final = 8.0

_MAX_CURSORS: Final = 100
"""Of one client, as the gateway bounds them."""


def prepare_few(target: Target) -> None:
    """Register 2,000 events."""
    wire.register(target.mariner, [event(["app", f"{i % 20}"], i) for i in range(2_000)], 500)


def parked_phantoms(target: Target) -> Facts:
    """100 cursors with long names, which park 1,000 events that never were, again and again."""
    before = _metrics_bytes(target)
    n_sent = n_refused = 0
    for number, _ in enumerate(until(target.duration(_PARKING_S))):
        name = f"{number % _MAX_CURSORS:064}"
        with (
            tried(),
            Peer(target.mariner, "insider", [["app", "*"]], persisted=True, cursor=name) as peer,
        ):
            while (message := peer.receive())["msg_type"] != "up_to_date":
                if message["msg_type"] == "events":
                    last = message["events"][-1]["id"]
            never = [{**last, "instance": -i} for i in range(1, 1_001)]
            n_sent += 1
            peer.send(_parking(never))
            try:
                while True:
                    peer.receive_raw()
            except ConnectionError:
                n_refused += 1
    return {
        "sent": n_sent,
        "share refused": n_refused / max(n_sent, 1),
        "bytes more of /metrics": _metrics_bytes(target) - before,
    }


def _parking(ids: list[dict[str, int]]) -> Any:
    return {"msg_type": "events_ack", "parked": [{"id": i, "reason": "x" * 500} for i in ids]}


def _metrics_bytes(target: Target) -> int:
    with urllib.request.urlopen(f"http://{wire.HOST}:{target.http}/metrics") as answer:
        return len(answer.read())


ATTACKS: Final = {
    "parked-phantoms": Attack(
        parked_phantoms,
        prepare_few,
        limits=Limits(
            at_least={"sent": 1, "share refused": 1.0},
            at_most={"bytes more of /metrics": 5_000},
        ),
    ),
}
