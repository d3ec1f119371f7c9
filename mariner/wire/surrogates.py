r"""Where JSON has half of a surrogate pair, such as ``"\ud800"``.

JSON's grammar allows it (RFC 8259, section 8.2), but no UTF-8 text can hold it, and typed decoding
takes it for wrong syntax. What was refused is read here once more, to tell the two apart.

Sans I/O; any thread.
"""

import json
from typing import Any, Final, NoReturn, TypeAlias

from mariner import limits
from mariner.wire import contract, lenient

REASON: Final = "lone surrogate"

_MAX_POINTER: Final = limits.MAX_REASON_BYTES

_Path: TypeAlias = "tuple[_Path, str | int] | None"


def find(data: bytes) -> tuple[dict[str, Any], str] | None:
    """Find a lone surrogate in a JSON object.

    Args:
        data: UTF-8, of bounded length.

    Returns:
        The properties of the object, except texts that have one, and numbers that are no integers;
        and the JSON pointer, which may be cut, to the first text that has one, or to the object
        that has it in a key.
        None: there is no lone surrogate, or it is not the only thing that is wrong with the JSON.
    """
    if b"\\ud" not in data and b"\\uD" not in data:
        return None
    try:
        value = _decode(data.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, tuple) or (pointer := _pointer(value)) is None:
        return None
    properties = {key: lenient.integer(i) if type(i) is _Number else i for key, i in value}
    return {key: i for key, i in properties.items() if type(i) is not str or _is_text(i)}, pointer


class _Number(str):
    """A number as it is written."""

    __slots__ = ()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


# objects become tuples of items, so that no key hides another one
_decode: Final = json.JSONDecoder(
    object_pairs_hook=tuple, parse_int=_Number, parse_float=_Number, parse_constant=_refuse
).decode


def _pointer(value: Any) -> str | None:
    waiting: list[tuple[Any, _Path]] = [(value, None)]  # no recursion: values may be nested deeply
    while waiting:
        part, path = waiting.pop()
        is_object = type(part) is tuple
        if type(part) is str or (is_object and not _is_text("".join([key for key, _ in part]))):
            pointer = contract.pointer_to(_keys(path))
            return pointer if len(pointer) <= _MAX_POINTER else f"{pointer[:_MAX_POINTER]}…"
        items = part if is_object else enumerate(part)
        waiting += [
            (i, (path, key)) for key, i in items if type(i) is not _Number and _may_have_one(i)
        ][::-1]
    return None


def _may_have_one(part: Any) -> bool:
    kind = type(part)
    return not _is_text(part) if kind is str else bool(part) and kind in (tuple, list)


def _keys(path: _Path) -> list[str | int]:
    keys: list[str | int] = []
    while path:
        path, key = path
        keys.append(key)
    return keys[::-1]


def _is_text(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
