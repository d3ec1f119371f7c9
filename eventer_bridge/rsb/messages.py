"""Protocol-buffer messages of RSB, created from ``schemas/rsb.proto`` on import.

Without a ``protoc`` step, there is no generated code that fits only one version of
``protobuf``: the file is read into a descriptor, from which ``protobuf`` creates classes. These
have a pool of their own, apart from an RSB implementation in the same process.

Sans I/O (but for the file); any thread.
"""

import re
from typing import Any, Final

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from eventer_bridge.resources import read_schema

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
    """Descriptor of a ``.proto`` text as simple as ours.

    Args:
        name: file name.
        text: its content.

    Raises:
        ValueError: a line is not understood.
    """
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
