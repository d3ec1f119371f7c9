"""How many functions of ours a request passes, in how many files: ``python -m tests.perf.passes``.

A gateway with a store runs in this process; a raw peer sends the same request some times, and
then once more, during which all threads note which functions they call.
"""

import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import uvloop

from tests.support.inprocess import running_gateway
from tests.support.peer import RawPeer, event, register_req

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = tuple(f"{ROOT / i}/" for i in ("eventer_bridge", "mariner"))
WARM_UP: Final = 20

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
    """What one of :data:`REQUESTS` passes."""
    make = REQUESTS[name]
    calls: Counter[str] = Counter()
    is_noting = False

    def note(frame: FrameType, what: str, _: object) -> None:
        if what == "call" and is_noting:
            code = frame.f_code
            if code.co_filename.startswith(PACKAGES):
                path = Path(code.co_filename).relative_to(ROOT)
                calls[f"{path}:{code.co_qualname}"] += 1

    threading.setprofile(note)  # of the threads that the gateway starts
    try:
        async with (
            running_gateway(path=directory / "store") as gateway,
            await RawPeer.init(gateway.mariner.port) as peer,
        ):
            for i in range(WARM_UP):
                await peer.request(register_req(i, event("a")))
                await peer.request(make(WARM_UP + i))
            sys.setprofile(note)
            is_noting = True
            await peer.request(make(3 * WARM_UP))
            is_noting = False
            sys.setprofile(None)
    finally:
        threading.setprofile(None)
    return Passed(calls)


def main() -> None:
    for name in REQUESTS:
        with tempfile.TemporaryDirectory() as directory:
            found = uvloop.run(passed(name, Path(directory)))
        print(f"{name}: {found.n_functions} functions in {found.n_files} files")
        for call, count in sorted(found.calls.items()):
            print(f"  {count} {call}")


if __name__ == "__main__":
    main()
