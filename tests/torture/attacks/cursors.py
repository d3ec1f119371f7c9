"""What a client with cursors can do: name them, park events, and take them from itself."""

import urllib.request
from typing import Any, Final

from tests.torture.attacks import wire
from tests.torture.attacks.attack import Attack, Facts, Limits, Target
from tests.torture.attacks.wire import Peer, event, tried, until

_PARKING_S: Final = 8.0

_LATE_S: Final = 5.0

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


def late_attempts(target: Target) -> Facts:
    """A reader's earlier attempts to connect arrive after the one that lives; half of them leave.

    The one that lives keeps the cursor, and gets each event.
    """
    n_sent = n_declined = n_missed = 0
    first = {"attempt": {"reader": "late", "number": 1 << 40}}
    with _reader(target, **first) as peer:
        for number in until(target.duration(_LATE_S)):
            earlier = {"attempt": {"reader": "late", "number": number}}
            n_sent += 1
            if number % 2:
                with wire.connect(target.mariner) as leaving:
                    leaving.sendall(wire.encode({**_init_req(), **earlier}))
            else:
                try:
                    _reader(target, **earlier).close()
                except ConnectionError:
                    n_declined += 1
            wire.register(target.mariner, [event(["app", "late"], number)], 1)
            try:
                while (message := peer.receive())["msg_type"] != "events":
                    pass
                n_missed += [i["payload"]["data"] for i in message["events"]] != [number]
            except ConnectionError:
                n_missed += 1
                break
    return {"sent": n_sent, "let in": (n_sent + 1) // 2 - n_declined, "missed": n_missed}


def _reader(target: Target, **init: Any) -> Peer:
    return Peer(target.mariner, "insider", [["app", "late"]], persisted=True, cursor="late", **init)


def _init_req() -> Any:
    return {
        **wire.init_req("insider", "insider", [["app", "late"]]),
        "persisted": True,
        "cursor": "late",
    }


def _parking(ids: list[dict[str, int]]) -> Any:
    return {"msg_type": "events_ack", "parked": [{"id": i, "reason": "x" * 500} for i in ids]}


def _metrics_bytes(target: Target) -> int:
    with urllib.request.urlopen(f"http://{wire.HOST}:{target.http}/metrics") as answer:
        return len(answer.read())


ATTACKS: Final = {
    "late-attempts": Attack(
        late_attempts, limits=Limits(at_least={"sent": 3}, at_most={"let in": 0, "missed": 0})
    ),
    "parked-phantoms": Attack(
        parked_phantoms,
        prepare_few,
        limits=Limits(
            at_least={"sent": 1, "share refused": 1.0},
            at_most={"bytes more of /metrics": 5_000},
        ),
    ),
}
