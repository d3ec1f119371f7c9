"""What event types cost is what they take."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from eventer_bridge import limits, packed
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.types import TypeRegistry
from eventer_bridge.backends.type_budget import TypeBudget
from eventer_bridge.model import EventType

N_TYPES = 1_000

LONG = [f"segment {i}" for i in range(62)]
SHAPES: dict[str, tuple[Callable[[int], list[str]], int]] = {
    "ordinary": (lambda i: ["app", f"machine {i // 100}", f"sensor {i % 100}", "value"], 350),
    "flat": (lambda i: ["app", f"sensor {i}"], 450),
    "branch at the end": (lambda i: [*LONG, str(i // 50), str(i % 50)], 1_024),
    "branch at the begin": (lambda i: [str(i), *LONG], 1_024),
    "pairs": (lambda i: [str(i // 2), *LONG, str(i % 2)], 1_200),
    "nothing shared": (lambda i: [f"{i}.{j}" for j in range(64)], 8_000),
    "beginnings of others": (lambda i: [str(i // 64), *LONG[: i % 64]], 1_024),
    "one segment": (lambda i: [f"{i:01000}"], 1_500),
}
"""How types are made, and the bytes that each may take."""


@pytest.mark.parametrize("shape", SHAPES)
def test_memory_of_types(shape: str) -> None:
    make, max_bytes = SHAPES[shape]

    def stored() -> Iterator[tuple[bytes, EventType]]:
        for number in range(N_TYPES):
            # decoded as they come from a store: nothing is shared by itself
            data = packed.encode_type(tuple(make(number)))
            yield keys.encode_type_id(number), keys.decode_type(data)

    gc.collect()
    tracemalloc.start()
    try:
        types = TypeRegistry(stored())
        used_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(types) == N_TYPES
    assert used_bytes / N_TYPES <= max_bytes
    budget = TypeBudget()
    for event_type in types.names.values():
        budget.add(event_type, "client")
    assert used_bytes <= budget.total * limits.TYPE_PRICE_BYTES
    assert budget.spent == {"client": budget.total}
