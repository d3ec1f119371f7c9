"""Decoding large messages in slices, with the same verdict as ``codec.decode``.

A server's large messages are registrations::

    {"msg_type":"register_req","register_id":1,"register_events":[ … ]}
    └──────────────────── head ────────────────────────────────┘   └ tail

Each step decodes as many events as fill it. Where to cut is guessed: before text that looks like
the beginning of the first event. The guess is right if complete events precede it; if not (a
payload may contain anything), the end of the next event is searched bracket by bracket. Head and
tail together form a message without events, which the codec decodes.

Beyond the contract:

- a message of more than ``MAX_OTHER_MESSAGE_BYTES`` is a ``register_req`` with its key
  ``register_events``, once, within the first ``limits.LARGE_FRAME_BYTES``, at most as many bytes
  behind the events, and at most ``MAX_SESSION_EVENTS`` events;
- each of these has at most ``limits.MAX_EVENT_COMMAS`` commas and ``limits.MAX_EVENT_MARKS``
  brackets and quotes.

Sans I/O; any thread.
"""

import contextlib
import re
from typing import Final, NoReturn

import msgspec

from eventer_bridge import limits as core_limits
from eventer_bridge import payloads
from eventer_bridge.model import RegisterEvent
from eventer_bridge.packed import Batch, TypeTable, append, batch_of
from eventer_bridge.slices import Steps
from mariner import limits
from mariner.errors import ContractError
from mariner.wire import codec, lenient
from mariner.wire.messages import Message, RegisterReq

_decode_events: Final = msgspec.json.Decoder(list[RegisterEvent]).decode
_decode_event: Final = msgspec.json.Decoder(RegisterEvent).decode

_check_json: Final = msgspec.json.Decoder(msgspec.Raw).decode
_decode_properties: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

_EVENTS: Final = re.compile(rb'(?<!\\)"register_events"[ \t\n\r]*:[ \t\n\r]*\[')
_FIRST: Final = re.compile(rb'\{[ \t\n\r]*"[^"\\]{0,64}"[ \t\n\r]*:[ \t\n\r]*[\[{"]?')
_BLANKS: Final = b" \t\n\r"
_NOT_BLANK: Final = re.compile(rb"[ \t\n\r]*")
_STRUCTURE: Final = re.compile(rb'[^"\[\]{}]*')

_OPENING: Final = (b"[", b"{")
_CLOSING: Final = (b"]", b"}")

_MAX_GUESSES: Final = 4
"""Cuts that are tried before brackets are counted."""

_MIN_GUESS_BYTES: Final = 256
"""Distance of the next cut after a wrong guess; it doubles with each right one."""

_STEP_TOKENS: Final = 1_024
"""Brackets and quotes passed in one step, and backslashes examined at once."""


def decode(message: bytes, types: TypeTable) -> Steps[Message | Batch]:
    """Decode a message in steps; a registration becomes a batch meanwhile.

    Args:
        message: without framing, from a client.
        types: of the batch.

    Raises:
        ContractError: the message is refused; with pointer and reason.
    """
    begin = _find_events(message)
    if begin is None:
        if len(message) > core_limits.MAX_OTHER_MESSAGE_BYTES:
            raise ContractError(
                f"{len(message)} bytes, at most {core_limits.MAX_OTHER_MESSAGE_BYTES} are allowed"
                " for messages other than register_req"
            )
        return codec.decode(message)
    reader = _Reader(message, _skip_blanks(message, begin), types)
    try:
        yield from reader.read()
    except ContractError as e:
        reader.refuse(e)
    request = reader.without_events()
    if not isinstance(request, RegisterReq):
        return request
    batch = reader.batch
    batch.register_id = request.register_id
    batch.request_key, batch.after_key = request.request_key, request.after_key
    return batch


def _find_events(message: bytes) -> int | None:
    """Where the events begin, if not far from the beginning."""
    depth = begin = 0
    for found in _EVENTS.finditer(message, 0, limits.LARGE_FRAME_BYTES):
        marks = payloads.without_strings(message[begin : found.start()])
        depth += sum(map(marks.count, _OPENING)) - sum(map(marks.count, _CLOSING))
        if depth == 1:
            return found.end()
        begin = found.start()
    return None


class _Reader:
    """Takes the events out of a message.

    Attributes:
        batch: of those decoded so far.
    """

    def __init__(self, message: bytes, begin: int, types: TypeTable) -> None:
        self._message = message
        self._begin = self._pos = begin
        first = _FIRST.match(message, begin)
        self._sign = first.group() if first else b""
        self._guess_bytes = limits.STEP_BYTES
        self.batch = batch_of((), types)

    def read(self) -> Steps[None]:
        """Read all events; raises ContractError, without the details from the head."""
        if self._byte() == b"]":
            return
        while True:
            if not self._read_many():
                yield from self._read_one()
                self._pos = _skip_blanks(self._message, self._pos)
                self._check_count()
                if self._byte() == b"]":
                    return
                if self._byte() != b",":
                    raise ContractError("not JSON: expected ',' or ']' after an event")
                self._pos = _skip_blanks(self._message, self._pos + 1)
            self._check_count()
            yield

    def without_events(self) -> Message:
        """The message without its events, for decoding the rest."""
        tail = self._message[self._pos : self._pos + limits.LARGE_FRAME_BYTES + 1]
        if len(tail) > limits.LARGE_FRAME_BYTES:
            raise ContractError(
                f"more than {limits.LARGE_FRAME_BYTES} bytes follow register_events"
            )
        head = self._message[: self._begin]
        request = codec.decode(head + tail)
        if isinstance(request, RegisterReq):
            # of a key that is given twice, the last value counts
            marked = _decode_properties(b"%b[]%b" % (head, tail))["register_events"]
            if bytes(marked).translate(None, _BLANKS) != b"[[]]":
                raise ContractError(
                    "expected once in a large message", pointer="/register_events"
                ).of_registration(request.register_id)
        return request

    def refuse(self, error: ContractError) -> NoReturn:
        """Raise an error, with details from the head if it can be decoded."""
        self._pos = max(_last_bracket(self._message), self._begin)
        try:
            request = self.without_events()
            if isinstance(request, RegisterReq) and error.pointer:
                raise error.of_registration(request.register_id) from None
        except ContractError as e:
            if e.register_id is not None:
                raise
        try:
            raise error
        finally:
            del error  # else it and this frame would hold each other, and the message

    def _check_count(self) -> None:
        if len(self.batch) > core_limits.MAX_SESSION_EVENTS:
            raise ContractError(
                f"at most {core_limits.MAX_SESSION_EVENTS} events are allowed",
                pointer="/register_events",
            )

    def _byte(self) -> bytes:
        return self._message[self._pos : self._pos + 1]

    def _read_many(self) -> bool:
        """Read complete events up to a guessed beginning of another; false if there is none."""
        if not self._sign:
            return False
        message, begin = self._message, self._pos
        cut = min(begin + self._guess_bytes, len(message))
        for _ in range(_MAX_GUESSES):
            cut = message.rfind(self._sign, begin + 1, cut)
            if cut < 0:
                break
            part = message[begin:cut].rstrip(_BLANKS)
            if part.endswith(b","):
                _check_text(part)
                try:
                    events = _decode_events(b"[%b]" % part[:-1])
                except (msgspec.DecodeError, RecursionError):
                    continue
                codec.check_payloads(events, len(self.batch))
                append(self.batch, events)
                self._pos = cut
                self._guess_bytes = min(2 * self._guess_bytes, limits.STEP_BYTES)
                return True
        self._guess_bytes = _MIN_GUESS_BYTES
        return False

    def _read_one(self) -> Steps[None]:
        begin = self._pos
        index = len(self.batch)
        pointer = f"/register_events/{index}"
        self._pos = yield from _end_of_value(self._message, begin, pointer)
        # the event may be the whole message
        event = self._message[begin : self._pos]
        yield
        _check_text(event)
        yield
        decoded = _event(event, pointer)
        del event
        yield
        yield from codec.check_payload_in_steps(decoded, index)
        yield
        append(self.batch, [decoded])


def _last_bracket(message: bytes) -> int:
    """Position of the last ``]`` outside of strings, if it is near the end."""
    end = len(message)
    near = message[-limits.LARGE_FRAME_BYTES :].replace(rb"\\", b"__").replace(rb"\"", b"__")
    is_text = False
    for part in reversed(near.split(b'"')):
        if not is_text and b"]" in part:
            return end - len(part) + part.rindex(b"]")
        end -= len(part) + 1
        is_text = not is_text
    return -1


def _event(event: bytes, pointer: str) -> RegisterEvent:
    try:
        return _decode_event(event)
    except (msgspec.ValidationError, RecursionError) as e:
        reason = str(e)  # the error itself would hold this frame, and the message, in a cycle
    except msgspec.DecodeError as e:
        _check_surrogates(event, pointer, e)
        raise ContractError(f"not JSON: {e}") from None
    codec.check_depth(event)
    if len(event) <= limits.MAX_LENIENT_BYTES:
        try:
            return _decode_event(lenient.plain_register_event(msgspec.Raw(event)))
        except msgspec.ValidationError as e:
            reason = str(e)
        except msgspec.DecodeError as e:  # beyond what was refused first
            _check_surrogates(event, pointer, e)
    raise ContractError(reason[: limits.MAX_REASON_BYTES], pointer=pointer)


def _check_surrogates(event: bytes, pointer: str, error: Exception) -> None:
    """Raise the reason if an event that is no JSON may be some except for lone surrogates."""
    if len(event) > limits.MAX_LENIENT_BYTES:
        reason = f"lone surrogate, or not JSON: {error}"  # finding out would take long
        raise ContractError(reason, pointer=pointer) from None
    if found := lenient.mend(event):
        mended, position = found
        with contextlib.suppress(msgspec.DecodeError):
            _check_json(mended)
            raise ContractError(f"{lenient.reason(position)} of the event", pointer=pointer)


def _is_escaped(message: bytes, begin: int, end: int) -> bool:
    """Whether an odd number of backslashes precedes ``end``, from ``begin`` on."""
    last = end
    while last > begin:
        part = message[max(begin, last - _STEP_TOKENS) : last]
        n_others = len(part.rstrip(b"\\"))
        last -= len(part) - n_others
        if n_others:
            break
    return (end - last) % 2 == 1


def _check_text(data: bytes) -> None:
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError as e:
            raise ContractError(f"not UTF-8: {e.reason}") from None


def _skip_blanks(message: bytes, pos: int) -> int:
    found = _NOT_BLANK.match(message, pos)
    assert found is not None
    return found.end()


def _end_of_value(message: bytes, pos: int, pointer: str) -> Steps[int]:
    """The end of a value that begins at ``pos``, if it is JSON.

    Raises:
        ContractError: it does not end, or has too many parts.
    """
    depth = n_tokens = n_commas = 0
    is_text = False
    while True:
        if is_text:
            end = message.find(b'"', pos)
            begin, pos = pos, end + 1
            # a quote after an odd number of backslashes does not end the string
            is_text = end > begin and _is_escaped(message, begin, end)
            if end - begin > limits.STEP_BYTES:
                yield
        else:
            found = _STRUCTURE.match(message, pos, pos + limits.STEP_BYTES)
            assert found is not None
            n_commas += message.count(b",", pos, found.end())
            if n_commas > limits.MAX_EVENT_COMMAS:
                raise ContractError(
                    f"more than {limits.MAX_EVENT_COMMAS} commas in one event", pointer=pointer
                )
            is_long = found.end() == pos + limits.STEP_BYTES
            pos = found.end()
            if is_long:
                yield
                continue
            mark = message[pos : pos + 1]
            end = pos if mark else -1
            is_text = mark == b'"'
            depth += (mark in _OPENING) - (mark in _CLOSING)
            pos += depth >= 0
        if end < 0:
            raise ContractError("not JSON: Input data was truncated")
        if depth <= 0 and not is_text:
            return pos
        n_tokens += 1
        if n_tokens > limits.MAX_EVENT_MARKS:
            raise ContractError(
                f"more than {limits.MAX_EVENT_MARKS} brackets and quotes in one event",
                pointer=pointer,
            )
        if n_tokens % _STEP_TOKENS == 0:
            yield
