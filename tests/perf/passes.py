"""How many functions of ours a request passes, in how many files: ``python -m tests.perf.passes``.

A gateway with a store runs in this process, and a raw peer sends the same request again and again
while all threads note which functions they call. The figures are the same on a busy machine:
nobody pauses after some time, and what not every request passed is no part of the way. Nor are
comprehensions, generator expressions and lambdas counted: they are lines of a function, and most
of them have no frame of their own since Python 3.12.
"""

import functools
import operator
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple
from unittest import mock

import uvloop

from eventer_bridge import limits
from eventer_bridge.net import limits as net_limits
from tests.support.inprocess import running_gateway
from tests.support.peer import RawPeer, event, register_req

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = tuple(f"{ROOT / i}/" for i in ("eventer_bridge", "mariner"))
WARM_UP: Final = 20
ROUNDS: Final = 10

ENDLESS: Final = dict.fromkeys(
    ("READER_STRETCH_S", "READER_TURN_S", "SHORT_QUERIES_S", "SLICE_S"), 60.0
)
"""Times after which work pauses for others, which a slow machine would reach."""

QUERY: Final = {
    "msg_type": "query_req",
    "query_id": 1,
    "query_type": "timeseries",
    "event_types": [["a"]],
    "order": "DESCENDING",
    "order_by": "TIMESTAMP",
    "max_results": 1,
}

REQUESTS: Final[dict[str, Callable[[int], dict[str, Any]]]] = {
    "register": lambda i: register_req(i, event("a")),
    "query": lambda i: {**QUERY, "query_id": i},
}


class Passed(NamedTuple):
    """What a request passed: calls by ``file:function``."""

    calls: Counter[str]

    @property
    def n_functions(self) -> int:
        return len(self.calls)

    @property
    def n_files(self) -> int:
        return len({i.rpartition(":")[0] for i in self.calls})


async def passed(name: str, directory: Path) -> Passed:
    """What each of :data:`REQUESTS` with this name passes."""
    make = REQUESTS[name]
    rounds: list[Counter[str]] = []
    is_noting = False

    def note(frame: FrameType, what: str, _: object) -> None:
        if what == "call" and is_noting:
            code = frame.f_code
            if code.co_filename.startswith(PACKAGES) and not code.co_name.startswith("<"):
                path = Path(code.co_filename).relative_to(ROOT)
                rounds[-1][f"{path}:{code.co_qualname}"] += 1

    async def send(peer: RawPeer) -> None:
        nonlocal is_noting
        for i in range(WARM_UP):
            await peer.request(register_req(i, event("a")))
            await peer.request(make(WARM_UP + i))
        for i in range(ROUNDS):
            rounds.append(Counter())
            is_noting = True
            await peer.request(make(3 * WARM_UP + i))
            is_noting = False

    threading.setprofile(note)  # of the threads that the gateway starts
    sys.setprofile(note)
    try:
        with mock.patch.dict(vars(limits), ENDLESS), mock.patch.object(net_limits, "TURN_S", 60.0):
            async with (
                running_gateway(path=directory / "store") as gateway,
                await RawPeer.init(gateway.mariner.port) as peer,
            ):
                await send(peer)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return Passed(functools.reduce(operator.and_, rounds))  # the least of each


def main() -> None:
    for name in REQUESTS:
        with tempfile.TemporaryDirectory() as directory:
            found = uvloop.run(passed(name, Path(directory)))
        print(f"{name}: {found.n_functions} functions in {found.n_files} files")
        for call, count in sorted(found.calls.items()):
            print(f"  {count} {call}")


if __name__ == "__main__":
    main()
