"""Checks events that modules created where they enter, as decoding does for those of clients.

Pure functions, for any thread.
"""

from typing import Any, Final

import msgspec

from eventer_bridge import payloads
from eventer_bridge.core.validation import check_payload
from eventer_bridge.errors import InvalidEventError
from eventer_bridge.model import (
    BinaryPayload,
    EventType,
    JsonPayload,
    ProcessEvent,
    RegisterEvent,
    Timestamp,
)

_decode_json: Final = msgspec.json.Decoder(msgspec.Raw).decode


def check_made(event: RegisterEvent | ProcessEvent) -> None:
    """Refuse an event that no client could register.

    Raises:
        TypeError: the value of a field has another type than the model declares.
        InvalidEventError: a source timestamp is out of range, a text has no UTF-8 form (a lone
            surrogate), or a payload is not JSON, is too large, or exceeds ``payloads.exceeded``.
    """
    _check_type(event.type)
    _check_timestamp(event.source_timestamp)
    payload: Any = event.payload
    if isinstance(payload, JsonPayload):
        _check_json(payload.data)
    elif isinstance(payload, BinaryPayload):
        _check_binary(payload.data_type, payload.data)
    elif payload is not None:
        raise TypeError(f"payload {payload!r}: expected JsonPayload, BinaryPayload or None")
    check_payload(event.payload)


def _check_type(event_type: EventType) -> None:
    given: Any = event_type
    if not isinstance(given, tuple) or not all(isinstance(i, str) for i in given):
        raise TypeError(f"type {given!r}: expected a tuple of str")
    if not all(map(_is_text, given)):
        raise InvalidEventError(f"type {given!a} has a lone surrogate, which is not Unicode text")


def _check_timestamp(source_timestamp: Any) -> None:
    if source_timestamp is None:
        return
    if not isinstance(source_timestamp, Timestamp):
        raise TypeError(f"source_timestamp {source_timestamp!r}: expected a Timestamp or None")
    if type(source_timestamp.s) is not int or type(source_timestamp.us) is not int:
        raise TypeError(f"source_timestamp {source_timestamp!r}: expected integers")
    Timestamp.checked(source_timestamp.s, source_timestamp.us)


def _check_json(data: Any) -> None:
    if not isinstance(data, msgspec.Raw):
        raise TypeError(
            f"data of a JsonPayload is {type(data).__name__}, expected msgspec.Raw:"
            " use JsonPayload.of(value)"
        )
    text = bytes(data)
    try:
        if payloads.is_too_deep(text):
            raise InvalidEventError("payload is nested too deeply")
        if not text.isascii():
            text.decode()  # msgspec does not check raw text
        _decode_json(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise InvalidEventError(f"payload is not JSON: {e}") from None


def _check_binary(data_type: Any, data: Any) -> None:
    if not isinstance(data_type, str) or not isinstance(data, bytes):
        raise TypeError(
            f"BinaryPayload of {type(data_type).__name__} and {type(data).__name__}, expected"
            " str and bytes"
        )
    if not _is_text(data_type):
        raise InvalidEventError(f"payload label {data_type[:40]!a} has a lone surrogate")


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
