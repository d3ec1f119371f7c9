"""Payload schemas of tests, and the processes that check them."""

from typing import Any, Final

import psutil

_DEPTH: Final = 60

ENDLESS: Final[dict[str, Any]] = {
    "$id": "test://endless",
    "$ref": f"#/$defs/{_DEPTH}",
    "$defs": {
        "0": {"type": "array"},
        **{str(i + 1): {"allOf": 2 * [{"$ref": f"#/$defs/{i}"}]} for i in range(_DEPTH)},
    },
}
"""A check against it looks at the payload 2**60 times."""

NUMBERS: Final[dict[str, Any]] = {
    "$id": "test://numbers",
    "type": "array",
    "items": {"type": "integer"},
}

LARGE: Final = list(range(4_000))
"""A payload that is too large to be checked on the event loop's thread, but no large message."""


def checkers(pid: int | None = None) -> list[psutil.Process]:
    """Processes of schema checks that a process (None: this one) has started."""
    children = psutil.Process(pid).children()
    return [i for i in children if "eventer_bridge.core.payload_schemas" in _command(i)]


def _command(process: psutil.Process) -> list[str]:
    try:
        command: list[str] = process.cmdline()
    except psutil.NoSuchProcess:
        return []
    return command
