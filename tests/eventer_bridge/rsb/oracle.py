"""Notifications by plain ``protobuf``, from the field numbers that were read off real peers."""

from typing import Any, Final

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.descriptor_pb2 import FileDescriptorProto

# message: {field: (number, kind)}; "!" is required, "*" is repeated
FIELDS: Final = {
    "EventId": {"sender_id": (1, "bytes!"), "sequence_number": (2, "uint32!")},
    "UserTime": {"key": (1, "bytes!"), "timestamp": (2, "int64!")},
    "UserInfo": {"key": (1, "bytes!"), "value": (2, "bytes!")},
    "EventMetaData": {
        "create_time": (2, "int64"),
        "send_time": (3, "int64"),
        "receive_time": (4, "int64"),
        "deliver_time": (5, "int64"),
        "user_times": (6, "UserTime*"),
        "user_infos": (7, "UserInfo*"),
    },
    "Notification": {
        "scope": (6, "bytes"),
        "wire_schema": (7, "bytes"),
        "data": (9, "bytes"),
        "causes": (13, "EventId*"),
        "method": (14, "bytes"),
        "meta_data": (15, "EventMetaData"),
        "event_id": (108, "EventId!"),
    },
}
_TYPES: Final = {
    "bytes": Field.TYPE_BYTES,
    "uint32": Field.TYPE_UINT32,
    "int64": Field.TYPE_INT64,
}
_LABELS: Final = {"!": Field.LABEL_REQUIRED, "*": Field.LABEL_REPEATED}


def describe() -> FileDescriptorProto:
    file = FileDescriptorProto(name="oracle.proto", package="rsb.protocol")
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for field_name, (number, kind) in fields.items():
            field = message.field.add(name=field_name, number=number)
            field.label = _LABELS.get(kind[-1], Field.LABEL_OPTIONAL)
            type_name = kind.rstrip("!*")
            if type_name in _TYPES:
                field.type = _TYPES[type_name]
            else:
                field.type = Field.TYPE_MESSAGE
                field.type_name = f".rsb.protocol.{type_name}"
    return file


_pool: Final = descriptor_pool.DescriptorPool()
_pool.Add(describe())
Notification: Final[Any] = message_factory.GetMessageClass(
    _pool.FindMessageTypeByName("rsb.protocol.Notification")
)
