"""Eventer messages as bytes, and back (001, "Chatter messages").

A message is the data of a chatter message, which carries its type, as
``HatEventer.MsgRegisterReq``. The schema is ``schemas/HatEventer.sbs``.

hat-sbs is not used: for events, most of the traffic, our own functions are three times as fast
(``tests/perf/test_eventer_codec.py``); received messages may be hostile (see ``sbs``); and
importing hat-sbs took a third of the gateway's start. Tests compare both.

Errors are of two kinds:

- **malformed** (``InvalidMessageError``: the connection is to be closed): an unknown type of
  message, data that ends too early or too late, a length or count beyond the end, an unknown
  choice, text that is not UTF-8, an integer of more than 64 bits; and any other error in a
  server's message;
- **inadmissible** (``RefusedReq``: can be answered): a well-formed request with a timestamp out
  of range, a payload that is not JSON or exceeds ``payloads.exceeded``, too many events, query
  types or segments (``limits``), a negative ``max_results``. The rest of such a request is not
  read. Inadmissible events in a server's message are skipped and listed beside it
  (``RefusedEvent``): otherwise, one stored event would end every connection.

Wildcards in registered types, and ``*`` in the middle of query types, are left to the engine.

Sans I/O; any thread.
"""

import contextlib
from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import Any, Final

from eventer_bridge.chatter import sbs
from eventer_bridge.errors import InvalidEventError, InvalidMessageError
from eventer_bridge.eventer.events import (
    encode_events,
    encode_register_events,
    encode_type,
    read_events,
    read_events_in_steps,
    read_register_events,
    read_register_events_in_steps,
    read_type,
)
from eventer_bridge.eventer.messages import (
    Message,
    MsgEventsAck,
    MsgEventsNotify,
    MsgInitReq,
    MsgInitRes,
    MsgQueryReq,
    MsgQueryRes,
    MsgRegisterReq,
    MsgRegisterRes,
    MsgStatusNotify,
    RefusedEvent,
    RefusedReq,
)
from eventer_bridge.eventer.queries import (
    encode_event_id,
    encode_query_params,
    encode_query_types,
    read_event_id,
    read_query_params,
    read_query_types,
)
from eventer_bridge.model import Event, EventType, QueryResult, RegisterEvent, Status
from eventer_bridge.packed import KnownTypes, Packed, pack_sbs
from eventer_bridge.slices import Steps, at_once, cut_in_steps

_STATUSES: Final = (Status.STANDBY, Status.STARTING, Status.OPERATIONAL, Status.STOPPING)


def type_name(message_type: type[Message]) -> str:
    """Name of a type of message in chatter: ``HatEventer.Msg…``."""
    return f"HatEventer.{message_type.__name__}"


# --- decoding -----------------------------------------------------------------------------


def decode(name: str, data: bytes) -> Message | RefusedReq:
    """Decode a message.

    Args:
        name: its type, as ``HatEventer.MsgRegisterReq``.
        data: the message, without chatter.

    Raises:
        InvalidMessageError: the message is malformed; see the module.
    """
    message_type = _TYPES.get(name)
    if message_type is None:
        raise InvalidMessageError(f"{name[:100]!r}: not a message of the Eventer protocol")
    try:
        message, end = _READERS[message_type](data, 0)
    except (InvalidEventError, InvalidMessageError, IndexError) as e:
        return _refused(message_type, len(data), e)
    _check_end(message_type, end, len(data))
    return message


def decode_register_req(data: bytes) -> Steps[MsgRegisterReq | RefusedReq]:
    """Decode a large ``MsgRegisterReq`` in steps; raises as :func:`decode`."""
    try:
        register_events, end = yield from read_register_events_in_steps(data, 0)
    except (InvalidEventError, InvalidMessageError, IndexError) as e:
        return _refused(MsgRegisterReq, len(data), e)
    _check_end(MsgRegisterReq, end, len(data))
    return MsgRegisterReq(register_events)


def pack_register_req(data: bytes, types: KnownTypes | None) -> Packed | None:
    """Pack a ``MsgRegisterReq`` of these types, if any (``eventer_bridge.packed``)."""
    return None if types is None else pack_sbs(data, types, _decode_packed)


def _decode_packed(data: bytes) -> Sequence[RegisterEvent]:
    """The events of a packed message; cannot fail."""
    return read_register_events(data, 0)[0]


def read_known_type(text: bytes) -> EventType | None:
    """An event type that is a whole text; None: it is none, or longer than it need be."""
    try:
        event_type, _ = read_type(text, 0)
    except (InvalidEventError, InvalidMessageError, IndexError):
        return None
    return event_type if encode_type(event_type) == text else None


def decode_register_reqs(
    messages: Sequence[bytes], room: int, types: KnownTypes | None = None
) -> list[Sequence[RegisterEvent]]:
    """Events of each ``MsgRegisterReq``, as by :func:`decode`, but faster.

    Args:
        messages: the requests.
        room: the request that reaches so many events is the last.
        types: requests of these are packed; None: none is.

    Returns:
        Those up to there, or to the first that :func:`decode` refuses.
    """
    decoded: list[Sequence[RegisterEvent]] = []
    register_events: Sequence[RegisterEvent] | None
    with contextlib.suppress(InvalidEventError, InvalidMessageError, IndexError):
        for data in messages:
            register_events = pack_register_req(data, types)
            if register_events is None:
                register_events, end = read_register_events(data, 0)
                if end != len(data):
                    break
            decoded.append(register_events)
            room -= len(register_events) or 1
            if room <= 0:
                break
    return decoded


def decode_with_events(name: str, data: bytes) -> Steps[Message]:
    """Decode a large message of :data:`WITH_EVENTS` in steps; raises as :func:`decode`."""
    message_type = _TYPES[name]
    try:
        message, end = yield from _STEP_READERS[message_type](data)
    except (InvalidEventError, InvalidMessageError, IndexError) as e:
        raise _malformed(message_type, len(data), e) from None
    _check_end(message_type, end, len(data))
    return message


def _refused(message_type: type[Message], size: int, error: Exception) -> RefusedReq:
    if message_type in {MsgInitReq, MsgRegisterReq, MsgQueryReq} and isinstance(
        error, InvalidEventError
    ):
        return RefusedReq(message_type, str(error))
    raise _malformed(message_type, size, error) from None


def _malformed(message_type: type[Message], size: int, error: Exception) -> InvalidMessageError:
    name = type_name(message_type)
    if isinstance(error, IndexError):
        return InvalidMessageError(f"{name}: ends too early, at byte {size}")
    return InvalidMessageError(f"{name}: {error}")


def _check_end(message_type: type[Message], end: int, size: int) -> None:
    if end != size:
        name = type_name(message_type)
        raise InvalidMessageError(f"{name}: ends at byte {end}, but {size - end} bytes follow")


def _read_init_req(data: bytes, pos: int) -> tuple[MsgInitReq, int]:
    client_name, pos = sbs.read_string(data, pos)
    client_token, pos = sbs.read_optional(sbs.read_string, data, pos)
    subscriptions, pos = read_query_types(data, pos)
    server_id, pos = sbs.read_optional(sbs.read_integer, data, pos)
    persisted, pos = sbs.read_boolean(data, pos)
    return MsgInitReq(client_name, client_token, subscriptions, server_id, persisted), pos


def _read_init_res(data: bytes, pos: int) -> tuple[MsgInitRes, int]:
    is_error, pos = sbs.read_choice(data, pos, 2)
    if is_error:
        error, pos = sbs.read_string(data, pos)
        return MsgInitRes(None, error), pos
    status, pos = sbs.read_one_of(_STATUSES, data, pos)
    return MsgInitRes(status), pos


def _read_status_notify(data: bytes, pos: int) -> tuple[MsgStatusNotify, int]:
    status, pos = sbs.read_one_of(_STATUSES, data, pos)
    return MsgStatusNotify(status), pos


def _read_events_notify(data: bytes, pos: int) -> tuple[MsgEventsNotify, int]:
    refused: list[RefusedEvent] = []
    events, pos = read_events(data, pos, refused)
    return MsgEventsNotify(events, tuple(refused)), pos


def _read_events_ack(data: bytes, pos: int) -> tuple[MsgEventsAck, int]:
    return MsgEventsAck(), pos


def _read_register_req(data: bytes, pos: int) -> tuple[MsgRegisterReq, int]:
    register_events, pos = read_register_events(data, pos)
    return MsgRegisterReq(register_events), pos


def _read_register_res(data: bytes, pos: int) -> tuple[MsgRegisterRes, int]:
    is_failure, pos = sbs.read_choice(data, pos, 2)
    if is_failure:
        return MsgRegisterRes(None), pos
    events, pos = read_events(data, pos)
    return MsgRegisterRes(events), pos


def _read_query_req(data: bytes, pos: int) -> tuple[MsgQueryReq, int]:
    params, pos = read_query_params(data, pos)
    return MsgQueryReq(params), pos


def _read_query_res(data: bytes, pos: int) -> tuple[MsgQueryRes, int]:
    refused: list[RefusedEvent] = []
    events, pos = read_events(data, pos, refused)
    return _read_rest_of_query_res(data, pos, events, refused)


def _read_rest_of_query_res(
    data: bytes, pos: int, events: Sequence[Event], refused: Sequence[RefusedEvent]
) -> tuple[MsgQueryRes, int]:
    more_follows, pos = sbs.read_boolean(data, pos)
    deleted, n_deletions = None, 0
    if pos < len(data):  # ours, see ``schemas/HatEventer.sbs``
        deleted, pos = read_event_id(data, pos)
        n_deletions, pos = sbs.read_integer(data, pos)
    result = QueryResult(events, more_follows, deleted, n_deletions)
    return MsgQueryRes(result, tuple(refused)), pos


def _read_large_notify(data: bytes) -> Steps[tuple[Message, int]]:
    refused: list[RefusedEvent] = []
    events, pos = yield from read_events_in_steps(data, 0, refused)
    return MsgEventsNotify(events, tuple(refused)), pos


def _read_large_register_res(data: bytes) -> Steps[tuple[Message, int]]:
    is_failure, pos = sbs.read_choice(data, 0, 2)
    if is_failure:
        return MsgRegisterRes(None), pos
    events, pos = yield from read_events_in_steps(data, pos)
    return MsgRegisterRes(events), pos


def _read_large_query_res(data: bytes) -> Steps[tuple[Message, int]]:
    refused: list[RefusedEvent] = []
    events, pos = yield from read_events_in_steps(data, 0, refused)
    return _read_rest_of_query_res(data, pos, events, refused)


_STEP_READERS: Final[dict[type[Message], Callable[[bytes], Steps[tuple[Message, int]]]]] = {
    MsgEventsNotify: _read_large_notify,
    MsgRegisterRes: _read_large_register_res,
    MsgQueryRes: _read_large_query_res,
}
WITH_EVENTS: Final = frozenset(map(type_name, _STEP_READERS))
"""Messages of a server that may have many events."""

_READERS: Final[dict[type[Message], sbs.Reader[Message]]] = {
    MsgInitReq: _read_init_req,
    MsgInitRes: _read_init_res,
    MsgStatusNotify: _read_status_notify,
    MsgEventsNotify: _read_events_notify,
    MsgEventsAck: _read_events_ack,
    MsgRegisterReq: _read_register_req,
    MsgRegisterRes: _read_register_res,
    MsgQueryReq: _read_query_req,
    MsgQueryRes: _read_query_res,
}
_TYPES: Final = {type_name(i): i for i in _READERS}


# --- encoding -----------------------------------------------------------------------------


def encode(message: Message) -> tuple[str, bytes]:
    """Encode a message.

    Returns:
        Its type, as ``HatEventer.MsgRegisterReq``, and its data.

    Raises:
        InvalidEventError: a text has no UTF-8 form (a lone surrogate), an integer has more
            than 64 bits, or a query has a condition that only Mariner has.
    """
    message_type = type(message)
    name = type_name(message_type)
    try:
        return name, _ENCODERS[message_type](message)
    except (OverflowError, UnicodeEncodeError) as e:
        raise InvalidEventError(f"{name} cannot be encoded: {e}") from None


def encode_events_notify(events: Sequence[bytes]) -> bytes:
    """A ``MsgEventsNotify`` of encoded events."""
    return b"".join((sbs.encode_length(len(events)), *events))


_SUCCESS: Final = bytes((sbs.FIRST,))
_SUCCESS_OF_ONE: Final = _SUCCESS + sbs.encode_length(1)
_ERROR: Final = bytes((sbs.SECOND,))
REGISTER_FAILURE: Final = bytes((sbs.SECOND,))
"""A ``MsgRegisterRes`` that reports a failure."""


def encode_register_success(events: Sequence[bytes]) -> bytes:
    """A ``MsgRegisterRes`` of encoded events."""
    return b"".join((_SUCCESS, sbs.encode_length(len(events)), *events))


def encode_register_successes(sessions: Sequence[Sequence[Event]]) -> list[bytes]:
    """As :func:`encode_register_success`, of the events of several sessions."""
    encoded = encode_events([*chain.from_iterable(sessions)])
    if len(encoded) == len(sessions) and all(sessions):  # most have one event
        return [_SUCCESS_OF_ONE + i for i in encoded]
    waiting = iter(encoded)
    return [encode_register_success([*islice(waiting, len(i))]) for i in sessions]


def decode_register_success(data: bytes) -> Sequence[Event]:
    """The events of a :func:`encode_register_success`."""
    response, _ = _read_register_res(data, 0)
    return response.events or ()


def _encode_init_req(message: MsgInitReq) -> bytes:
    fields = (
        sbs.encode_string(message.client_name),
        sbs.encode_optional(sbs.encode_string, message.client_token),
        encode_query_types(message.subscriptions),
        sbs.encode_optional(sbs.encode_int64, message.server_id),
        sbs.encode_boolean(message.persisted),
    )
    return b"".join(fields)


def _encode_init_res(message: MsgInitRes) -> bytes:
    if message.status is None:
        return _ERROR + sbs.encode_string(message.error)
    return _SUCCESS + _encode_status(message.status)


def _encode_status(status: Status) -> bytes:
    return sbs.encode_one_of(_STATUSES, status)


def _encode_register_res(message: MsgRegisterRes) -> bytes:
    if message.events is None:
        return REGISTER_FAILURE
    return encode_register_success(encode_events(message.events))


def encode_query_result(result: QueryResult) -> Steps[list[bytes]]:
    """A ``MsgQueryRes`` in parts; its events are encoded in steps."""
    encoded = [sbs.encode_length(len(result.events))]
    end = sbs.TRUE if result.more_follows else sbs.FALSE
    if result.deleted is not None:
        end += encode_event_id(result.deleted) + sbs.encode_int64(result.n_deletions)
    waiting = yield from cut_in_steps(result.events)
    del result  # each event is freed once encoded, not all of them at once
    while waiting:
        encoded.append(b"".join(encode_events(waiting.popleft())))
        yield
    encoded.append(end)
    return encoded


_ENCODERS: Final[dict[type[Message], Callable[[Any], bytes]]] = {
    MsgInitReq: _encode_init_req,
    MsgInitRes: _encode_init_res,
    MsgStatusNotify: lambda i: _encode_status(i.status),
    MsgEventsNotify: lambda i: encode_events_notify(encode_events(i.events)),
    MsgEventsAck: lambda _: b"",
    MsgRegisterReq: lambda i: encode_register_events(i.register_events),
    MsgRegisterRes: _encode_register_res,
    MsgQueryReq: lambda i: encode_query_params(i.params),
    MsgQueryRes: lambda i: b"".join(at_once(encode_query_result(i.result))),
}
