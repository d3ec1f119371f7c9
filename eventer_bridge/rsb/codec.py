"""RSB's socket transport without I/O: frames, and notifications in them.

After the server's four zero bytes, both ways: an unsigned 32-bit little-endian length, and a
``Notification`` of ``schemas/rsb.proto`` of that length. Unknown fields are skipped; the bus
relays them nevertheless, because it relays the whole frame.

The messages are created from the ``.proto`` file on import: without a ``protoc`` step, there is no
generated code that fits only one version of ``protobuf``. They have a pool of their own, apart from
an RSB implementation in the same process.
"""

import re
from typing import Any, Final
from uuid import UUID

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.message import DecodeError

from eventer_bridge.errors import FrameError, InvalidEventError, InvalidMessageError
from eventer_bridge.resources import read_schema
from eventer_bridge.rsb import limits
from eventer_bridge.rsb.event import MetaData, RsbEvent, RsbEventId, parse_scope

_COMMENT: Final = re.compile(r"\s*//.*")
_HEAD: Final = re.compile(r'syntax = "proto2";|package ([\w.]+);')
_MESSAGE: Final = re.compile(r"message (\w+) \{")
_FIELD: Final = re.compile(r"\s+(required|optional|repeated) (\w+) (\w+) = (\d+);")

_SCALARS: Final = {
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "string": FieldDescriptorProto.TYPE_STRING,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "uint32": FieldDescriptorProto.TYPE_UINT32,
    "uint64": FieldDescriptorProto.TYPE_UINT64,
}
_LABELS: Final = {
    "optional": FieldDescriptorProto.LABEL_OPTIONAL,
    "required": FieldDescriptorProto.LABEL_REQUIRED,
    "repeated": FieldDescriptorProto.LABEL_REPEATED,
}


def read_proto(name: str, text: str) -> FileDescriptorProto:
    """Descriptor of a ``.proto`` text as simple as ours, or ``ValueError``."""
    file = FileDescriptorProto(name=name)
    for number, line in enumerate(text.splitlines(), 1):
        code = _COMMENT.sub("", line).rstrip()
        if head := _HEAD.fullmatch(code):
            file.package = head[1] or file.package
        elif match := _MESSAGE.fullmatch(code):
            file.message_type.add(name=match[1])
        elif (match := _FIELD.fullmatch(code)) and file.message_type:
            label, type_name, field_name, tag = match.groups()
            field = file.message_type[-1].field.add(name=field_name, number=int(tag))
            field.label = _LABELS[label]
            if type_name in _SCALARS:
                field.type = _SCALARS[type_name]
            else:
                field.type = FieldDescriptorProto.TYPE_MESSAGE
                field.type_name = f".{file.package}.{type_name}"
        elif code not in {"", "}"}:
            raise ValueError(f"{name}, line {number}: not understood: {line}")
    return file


_pool: Final = descriptor_pool.DescriptorPool()
_pool.Add(read_proto("rsb.proto", read_schema("rsb.proto")))


def _class(name: str) -> Any:
    # its fields are known at run time only
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"rsb.protocol.{name}"))


Notification: Final = _class("Notification")
Hello: Final = _class("Hello")
Bye: Final = _class("Bye")


HANDSHAKE: Final = bytes(4)
"""The server's first bytes."""

_HEADER_BYTES: Final = 4
_UUID_BYTES: Final = 16
_TIMES: Final = ("create_time", "send_time", "receive_time", "deliver_time")


def encode_frame(notification: bytes) -> bytes:
    """A notification with its header; ``InvalidEventError``: larger than peers may accept."""
    if len(notification) > limits.MAX_NOTIFICATION_BYTES:
        raise InvalidEventError(
            f"notification of {len(notification)} bytes, at most"
            f" {limits.MAX_NOTIFICATION_BYTES} are allowed"
        )
    return len(notification).to_bytes(_HEADER_BYTES, "little") + notification


class NotificationDecoder:
    """Cuts a stream of bytes into notifications; each byte is copied a bounded number of times."""

    __slots__ = ("_buffer", "_max_frame_bytes", "_position")

    def __init__(self, max_frame_bytes: int = limits.MAX_NOTIFICATION_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()
        self._position = 0  # the buffer is taken up to here

    @property
    def buffered_bytes(self) -> int:
        """Bytes fed and not taken yet."""
        return len(self._buffer) - self._position

    def feed(self, data: bytes) -> None:
        """Take in bytes of the stream."""
        if self._position:
            del self._buffer[: self._position]
            self._position = 0
        self._buffer += data

    def next_frame(self) -> bytes | None:
        """The next notification; None if more bytes are needed for it; or ``FrameError``."""
        buffer, begin = self._buffer, self._position + _HEADER_BYTES
        if len(buffer) < begin:
            return None
        size = int.from_bytes(buffer[self._position : begin], "little")
        if size > self._max_frame_bytes:
            raise FrameError(
                f"frame of {size} bytes announced, at most {self._max_frame_bytes} are allowed"
            )
        end = begin + size
        if len(buffer) < end:
            return None
        frame = bytes(memoryview(buffer)[begin:end])
        self._position = end
        if end == len(buffer):
            buffer.clear()  # an idle connection keeps no buffer of its largest frame
            self._position = 0
        return frame


def encode(event: RsbEvent) -> bytes:
    """Notification of an event, without framing."""
    message = Notification()
    _encode_id(message.event_id, event.event_id)
    message.scope = str(event.scope).encode()
    if event.schema:
        message.wire_schema = _to_bytes(event.schema)
    message.data = event.data
    if event.method is not None:
        message.method = _to_bytes(event.method)
    for cause in event.causes:
        _encode_id(message.causes.add(), cause)
    meta = event.meta
    for name in _TIMES:
        if (value := getattr(meta, name)) is not None:
            setattr(message.meta_data, name, value)
    for key, time_us in meta.user_times.items():
        message.meta_data.user_times.add(key=_to_bytes(key), timestamp=time_us)
    for key, text in meta.user_infos.items():
        message.meta_data.user_infos.add(key=_to_bytes(key), value=_to_bytes(text))
    return bytes(message.SerializeToString())


def decode(notification: bytes) -> RsbEvent:
    """Event of a notification, or ``InvalidMessageError``."""
    message = Notification()
    try:
        message.ParseFromString(notification)
    except DecodeError:
        raise InvalidMessageError("notification: not in the form of protocol buffers") from None
    if not message.IsInitialized():
        missing = ", ".join(message.FindInitializationErrors())
        raise InvalidMessageError(f"notification: {missing}: missing")
    event_id = _decode_id(message.event_id, "event_id")
    causes: tuple[RsbEventId, ...] = ()
    if message.causes:
        _check_count(message.causes, "causes")
        causes = tuple([_decode_id(cause, "causes") for cause in message.causes])
    try:
        scope = parse_scope(message.scope.decode("ascii", "replace"))
    except InvalidEventError as e:
        raise InvalidMessageError(f"notification: {e}") from None
    return RsbEvent(
        event_id,
        scope,
        _to_text(message.wire_schema),
        message.data,
        _to_text(message.method) if message.HasField("method") else None,
        causes,
        _decode_meta(message.meta_data),
    )


def _decode_meta(message: Any) -> MetaData:
    times: dict[str, Any] = {
        name: getattr(message, name) for name in _TIMES if message.HasField(name)
    }
    user_times: dict[str, int] = {}
    user_infos: dict[str, str] = {}
    if message.user_times:
        _check_count(message.user_times, "user_times")
        user_times = {_to_text(item.key): item.timestamp for item in message.user_times}
    if message.user_infos:
        _check_count(message.user_infos, "user_infos")
        user_infos = {_to_text(item.key): _to_text(item.value) for item in message.user_infos}
    return MetaData(**times, user_times=user_times, user_infos=user_infos)


def _encode_id(message: Any, event_id: RsbEventId) -> None:
    message.sender_id = event_id.sender.bytes
    message.sequence_number = event_id.sequence


def _decode_id(message: Any, field: str) -> RsbEventId:
    sender = message.sender_id
    if len(sender) != _UUID_BYTES:
        raise InvalidMessageError(
            f"notification: {field}.sender_id: {len(sender)} bytes, expected {_UUID_BYTES}"
        )
    return RsbEventId(UUID(bytes=sender), message.sequence_number)


def _check_count(items: Any, field: str) -> None:
    if len(items) > limits.MAX_NOTIFICATION_ITEMS:
        raise InvalidMessageError(
            f"notification: {field}: {len(items)} items, at most"
            f" {limits.MAX_NOTIFICATION_ITEMS} are allowed"
        )


def _to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _to_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
