"""What ``docs/protocol.md`` shows, as data: its dialogues and its frames.

Notation of a block ``dialogue``; a line that begins with a blank continues the one before::

    → {…}                          a client sends a message; B → …: another client
    ← {…}                          the gateway does
    (init with …; answered with …) both messages of init, as in the shortest dialogue, but for
                                   these fields
    (init with …; declined with "…")  the same, for this reason, and the end of the connection
    (registers a/1 true, b in session 5)  a registration of two events, and its answer
    <1/5/1>                        an event that the dialogue showed before, in full
    ← closes the connection        or →
    $ mariner …, (…)               something happens to the gateway

``python -m tests.protocol.document`` writes ``tests/vectors/dialogues.json``.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.protocol import dialogues
from tests.protocol.dialogues import Dialogue, Step

PATH: Final = Path(__file__).parents[2] / "docs" / "protocol.md"
TEXT: Final = PATH.read_text(encoding="utf-8")

_ARROW: Final = re.compile(r"(?:([A-Z]) )?([→←]) (.*)")
_INIT: Final = re.compile(
    r"(?:([A-Z]) )?\(init(?: with (.*?))?(?:; (answered|declined) with (.*))?\)"
)
_REGISTERS: Final = re.compile(r"(?:([A-Z]) )?\(registers (.*) in session (\d+)\)")
_KNOWN: Final = re.compile(r"<(-?\d+)/(-?\d+)/(-?\d+)>")
_CLOSES: Final = "closes the connection"


def blocks(language: str) -> Iterator[tuple[str, str]]:
    """The blocks of a language: the title of the section, and the text."""
    title = ""
    pattern = re.compile(r"^#+ (.*?)$|^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    for heading, found, text in pattern.findall(TEXT):
        if heading:
            title = heading
        elif found == language:
            yield title, text


def read_dialogues() -> list[Dialogue]:
    """All dialogues of the document, with placeholders; the first one is the shortest."""
    found: list[Dialogue] = []
    inits: list[Any] = []
    for title, text in blocks("dialogue"):
        steps = [*_Reader(inits).read(text)]
        if not inits:
            inits = [steps[0].send, steps[1].receive]
        n_before = sum(re.sub(r" \(\d+\)$", "", i.name) == title for i in found)
        name = f"{title} ({n_before + 1})" if n_before else title
        found.append(Dialogue(name, _Symbols().of(steps)))
    return found


class _Reader:
    """Reads the steps of a dialogue, with the values that the document shows."""

    def __init__(self, inits: list[Any]) -> None:
        self._inits = inits
        self._events: dict[str, Any] = {}

    def read(self, text: str) -> Iterator[Step]:
        """The steps of a block."""
        for line in re.sub(r"\n[ ]+", " ", text).splitlines():
            if found := _INIT.fullmatch(line):
                yield from self._init(found[1] or "A", *found.groups("")[1:])
            elif found := _REGISTERS.fullmatch(line):
                yield from self._registered(found[1] or "A", found[2], int(found[3]))
            elif found := _ARROW.fullmatch(line):
                peer, said = found[1] or "A", found[3]
                is_sent = found[2] == "→"
                if said == _CLOSES:
                    yield Step(peer, closes="client" if is_sent else "gateway")
                elif is_sent:
                    yield Step(peer, send=self._message(said))
                else:
                    message = self._message(said)
                    self._note(message)
                    yield Step(peer, receive=message)
            else:
                assert line.startswith(("$ ", "(")), line
                yield Step(stage=line.removeprefix("$ ").strip("()"))

    def _init(self, peer: str, changes: str, how: str, answer: str) -> Iterator[Step]:
        """Both messages of init."""
        request, response = self._inits
        yield Step(peer, send=request | json.loads(f"{{{changes}}}"))
        if how == "declined":
            error = json.loads(answer)
            yield Step(peer, receive={"msg_type": "init_res", "success": False, "error": error})
            yield Step(peer, closes="gateway")
        else:
            yield Step(peer, receive=response | json.loads(f"{{{answer}}}"))

    def _registered(self, peer: str, shown: str, session: int) -> Iterator[Step]:
        """A registration, and its answer."""
        requested = []
        for event_type, data in (i.partition(" ")[::2] for i in shown.split(", ")):
            payload = {"payload_type": "json", "data": json.loads(data)} if data else None
            register = {"type": event_type.split("/"), "source_timestamp": None}
            requested.append({**register, "payload": payload})
        at = {"timestamp": {"s": session, "us": 0}}
        events = [
            {"id": {"server": 1, "session": session, "instance": number}, **at, **event}
            for number, event in enumerate(requested, 1)
        ]
        head = {"register_id": session}
        request = {"msg_type": "register_req", **head, "register_events": requested}
        response = {"msg_type": "register_res", **head, "success": True, "events": events}
        self._note(response)
        yield Step(peer, send=request)
        yield Step(peer, receive=response)

    def _message(self, text: str) -> Any:
        shown = _KNOWN.sub(lambda found: json.dumps(self._events[found[0]]), text)
        return json.loads(shown)

    def _note(self, message: Any) -> None:
        for event in message.get("events", ()):
            number = "/".join(str(event["id"][key]) for key in ("server", "session", "instance"))
            self._events[f"<{number}>"] = event


class _Symbols:
    """Replaces what only a gateway knows by placeholders, from where it says it first."""

    def __init__(self) -> None:
        self._names: dict[Any, str] = {}

    def of(self, steps: list[Step]) -> list[Step]:
        """Steps with placeholders."""
        replaced = []
        for step in steps:
            changes: dict[str, Any] = {}
            for key in ("send", "receive"):
                if isinstance(message := getattr(step, key), dict):
                    changes[key] = self._replace(message, "", is_said=key == "receive")
            stage = self._in_text(step.stage)
            replaced.append(Step(step.peer, closes=step.closes, stage=stage, **changes))
        return replaced

    def _replace(self, value: Any, key: str, *, is_said: bool) -> Any:
        if (symbol := self._symbol(value, key)) is not None:
            name, made = symbol
            return self._names.setdefault(name, made) if is_said else self._names.get(name, value)
        if isinstance(value, dict):
            return {k: self._replace(i, k, is_said=is_said) for k, i in value.items()}
        if isinstance(value, list):
            return [self._replace(i, key, is_said=is_said) for i in value]
        if isinstance(value, str) and key in {"error", "reason"}:
            return self._in_text(value)
        return value

    def _symbol(self, value: Any, key: str) -> tuple[Any, str] | None:
        """What it is known by, and its placeholder; None: it is an ordinary value."""
        if key == "session" or (key == "last" and value):
            return value, f"$session{value}"
        if isinstance(value, dict) and value.keys() == {"s", "us"} and key != "source_timestamp":
            name = (value["s"], value["us"])
            return name, f"$time{1 + sum(isinstance(i, tuple) for i in self._names)}"
        if key == "id" and isinstance(value, str):
            return value, f"$history{1 + sum(isinstance(i, str) for i in self._names)}"
        return None

    def _in_text(self, text: str) -> str:
        for name, placeholder in self._names.items():
            if isinstance(name, str):
                text = text.replace(name, placeholder)
            elif isinstance(name, int):
                text = re.sub(rf"(?<=session ){name}\b|(?<=\d/){name}(?=/\d)", placeholder, text)
        return text


class Frame(NamedTuple):
    """Bytes of a frame, who sends them, and what the document says that they are."""

    is_sent: bool
    data: bytes
    rows: list[tuple[bytes, str]]


def read_frames() -> list[Frame]:
    """The frames that are shown byte by byte: rows of hexadecimal bytes, and their text."""
    frames = []
    for _, text in blocks("frame"):
        for shown in re.split(r"^(?=[→←])", text, flags=re.MULTILINE)[1:]:
            rows = []
            for line in shown.splitlines():
                found = re.fullmatch(r"[→← ] ((?:[0-9a-f]{2} )+) *(.*)", line)
                assert found is not None, line
                rows.append((bytes.fromhex(found[1]), found[2]))
            frames.append(Frame(shown[0] == "→", b"".join(data for data, _ in rows), rows))
    return frames


def main() -> None:
    """Write the file."""
    dialogues.FILE.write_text(dialogues.text_of(read_dialogues()), encoding="utf-8")


if __name__ == "__main__":
    main()
