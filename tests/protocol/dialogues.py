"""Dialogues between clients and a gateway, as data: ``tests/vectors/dialogues.json``.

A string that begins with ``$`` stands for a value that only the gateway knows: any one where it
comes first, the same one wherever it comes again (also within a text). ``…`` at the end of a text
stands for the rest of it, which is for people. Sessions are numbered as in
the document: theirs ascend as those numbers do.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

VECTORS: Final = Path(__file__).parents[1] / "vectors"
FILE: Final = VECTORS / "dialogues.json"

_PLACEHOLDER: Final = re.compile(r"\$(?:session|time|history)\d+")

Bindings: TypeAlias = dict[str, Any]


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """What happens next: of one client (``peer``), or on the gateway's side (``stage``).

    ``closes``: who ends the connection.
    """

    peer: str = ""
    send: Any = msgspec.UNSET
    receive: Any = msgspec.UNSET
    closes: Literal["client", "gateway"] | msgspec.UnsetType = msgspec.UNSET
    stage: str = ""


class Dialogue(msgspec.Struct, frozen=True):
    """Steps, one after the other; a client connects with its first one."""

    name: str
    steps: list[Step]


def load() -> list[Dialogue]:
    """The dialogues of the file."""
    return msgspec.json.decode(FILE.read_bytes(), type=list[Dialogue])


def text_of(dialogues: Iterable[Dialogue]) -> str:
    """The text of the file: a step a line."""
    parts = []
    for dialogue in dialogues:
        steps = [
            json.dumps(msgspec.to_builtins(step), ensure_ascii=False) for step in dialogue.steps
        ]
        lines = ",\n".join(f"   {step}" for step in steps)
        name = json.dumps(dialogue.name)
        parts.append(f' {{\n  "name": {name},\n  "steps": [\n{lines}\n  ]\n }}')
    return "[\n" + ",\n".join(parts) + "\n]\n"


# --- matching -------------------------------------------------------------------------------


class MismatchError(AssertionError):
    """The gateway said something else, at this place of a message."""

    def __init__(self, place: str, expected: Any, actual: Any) -> None:
        super().__init__(f"{place or '/'}: expected {expected!r}, got {actual!r}")


def match(expected: Any, actual: Any, known: Bindings, place: str = "") -> None:
    """Compare a message with an expected one; what it says for the first time becomes known."""
    if isinstance(expected, str):
        _match_text(expected, actual, known, place)
    elif isinstance(expected, dict):
        if not isinstance(actual, dict) or expected.keys() != actual.keys():
            raise MismatchError(place, expected, actual)
        for key, value in expected.items():
            match(value, actual[key], known, f"{place}/{key}")
    elif isinstance(expected, list):
        if not isinstance(actual, list) or len(expected) != len(actual):
            raise MismatchError(place, expected, actual)
        for index, (one, other) in enumerate(zip(expected, actual, strict=True)):
            match(one, other, known, f"{place}/{index}")
    elif type(expected) is not type(actual) or expected != actual:
        raise MismatchError(place, expected, actual)


def _match_text(expected: str, actual: Any, known: Bindings, place: str) -> None:
    if _PLACEHOLDER.fullmatch(expected) and expected not in known:
        known[expected] = actual
        return
    wanted = filled(expected, known)
    if expected.endswith("…"):
        is_same = isinstance(actual, str) and actual.startswith(wanted[:-1])
    else:
        is_same = wanted == actual
    if not is_same:
        raise MismatchError(place, wanted, actual)


def filled(message: Any, known: Bindings) -> Any:
    """A message with what is known in the place of placeholders; KeyError: one is not known."""
    match message:
        case str() if _PLACEHOLDER.fullmatch(message):
            return known[message]
        case str():
            return _PLACEHOLDER.sub(lambda found: str(known[found[0]]), message)
        case dict():
            return {key: filled(value, known) for key, value in message.items()}
        case list():
            return [filled(value, known) for value in message]
    return message


def check_order(known: Bindings) -> None:
    """Sessions ascend as their numbers in the document do."""
    numbers = sorted(int(i.removeprefix("$session")) for i in known if i.startswith("$session"))
    actual = [known[f"$session{number}"] for number in numbers]
    assert actual == sorted(set(actual)), dict(zip(numbers, actual, strict=True))
