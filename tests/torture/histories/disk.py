"""A directory as a disk would have it after a loss of power, from a record of system calls.

What was synced is there. Of what was written since, it is chosen by chance for each file: all,
nothing, a beginning that ends with any sector, or some of the sectors, with zeros in place of the
others.
Names are made and removed in the order of the calls, up to any of them: a sync of a directory keeps
all that came before, a sync of a file its own name, and what came before that (as the journals of
file systems do).
"""

import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.torture.strace import Call

SYSTEM_CALLS: Final = (
    "openat,close,write,pwrite64,lseek,fdatasync,fsync,rename,unlink,ftruncate,link"
)
"""Those that change the files of a store, or say which file is meant."""

SECTOR_BYTES: Final = 512

_CALL: Final = re.compile(r"^(\w+)\((.*)\) += (-?\d+)")
_TEXT: Final = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


class _Write(NamedTuple):
    """What a call did to a file: bytes at an offset; or its end, where there are none."""

    end: int
    offset: int
    data: bytes | None


class _File:
    """What is synced of a file, and what was written since."""

    def __init__(self) -> None:
        self.synced = bytearray()
        self.waiting: list[_Write] = []
        self.size = 0

    def write(self, write: _Write) -> None:
        if write.data is None:
            self.size = write.offset
        else:
            self.size = max(self.size, write.offset + len(write.data))
        self.waiting.append(write)

    def sync(self, begin: int) -> None:
        """Keep what was written before a sync began."""
        kept = [i for i in self.waiting if i.end < begin]
        self.waiting = self.waiting[len(kept) :]
        for write in kept:
            _apply(self.synced, write)

    def cut(self, chance: random.Random) -> bytes:
        """What is left of it."""
        content = bytearray(self.synced)
        pieces = [piece for write in self.waiting for piece in _sectors(write)]
        match chance.randrange(4):
            case 0:
                left = pieces
            case 1:
                left = []
            case 2:
                left = pieces[: chance.randint(0, len(pieces))]
            case _:
                left = _some(pieces, chance)
        for piece in left:
            _apply(content, piece)
        return bytes(content)


def _sectors(write: _Write) -> Iterator[_Write]:
    """What a call wrote of each sector, which a disk writes all of, or nothing."""
    end, offset, data = write
    if data is None:
        yield write
        return
    begin = 0
    while begin < len(data):
        size = SECTOR_BYTES - (offset + begin) % SECTOR_BYTES
        yield _Write(end, offset + begin, data[begin : begin + size])
        begin += size


def _some(pieces: Sequence[_Write], chance: random.Random) -> list[_Write]:
    """Of each sector the first pieces, up to any of them; all that changes the size."""
    n_pieces = Counter(i.offset // SECTOR_BYTES for i in pieces if i.data is not None)
    left = {sector: chance.randint(0, n) for sector, n in n_pieces.items()}
    some: list[_Write] = []
    for piece in pieces:
        sector = piece.offset // SECTOR_BYTES
        if piece.data is None or left[sector] > 0:
            some.append(piece)
            if piece.data is not None:
                left[sector] -= 1
    return some


def _apply(content: bytearray, write: _Write) -> None:
    if write.data is None:
        del content[write.offset :]
        content.extend(bytes(write.offset - len(content)))
        return
    content.extend(bytes(max(0, write.offset - len(content))))
    content[write.offset : write.offset + len(write.data)] = write.data


class Disk:
    """See the module.

    Args:
        directory: the files that count are directly in it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = str(directory)
        self._names: dict[str, _File] = {}
        self._kept: dict[str, _File] = {}
        self._waiting: list[dict[str, _File | None]] = []  # changes of names that are not synced
        self._open: dict[int, _File | None] = {}  # None: the directory
        self._positions: dict[int, int] = {}

    def replay(self, calls: Iterable[Call]) -> None:
        """Do what these did, in the order in which they ended."""
        for call in calls:
            if (match := _CALL.match(call.text)) is not None and (result := int(match[3])) >= 0:
                self._do(match[1], match[2], result, call)

    def _do(self, name: str, arguments: str, result: int, call: Call) -> None:
        if name in _OF_NAMES:
            paths = [i.decode() for i in _texts(arguments)]
            if name == "openat":
                self._open_file(paths[0], arguments, result, call)
            else:
                self._rename(name, *map(self._name, paths))
            return
        number = int(arguments.partition(",")[0])
        if number not in self._open:
            return
        file = self._open[number]
        match name:
            case "close":
                del self._open[number]
            case "lseek":
                self._positions[number] = result
            case "fdatasync" | "fsync":
                self._sync(file, call.begin)
            case "write" if file is not None:
                offset = self._positions[number]
                file.write(_Write(call.end, offset, _texts(arguments)[0][:result]))
                self._positions[number] = offset + result
            case "pwrite64" if file is not None:
                offset = int(arguments.rpartition(", ")[2])
                file.write(_Write(call.end, offset, _texts(arguments)[0][:result]))
            case "ftruncate" if file is not None:
                size = int(arguments.rpartition(", ")[2])
                file.write(_Write(call.end, size, None))

    def _name(self, path: str) -> str | None:
        """The name of a file in the directory; None: it is elsewhere."""
        directory, _, name = path.rpartition("/")
        return name if directory == self._directory else None

    def _open_file(self, path: str, arguments: str, number: int, call: Call) -> None:
        if path == self._directory:
            self._open[number] = None
            return
        name = self._name(path)
        if name is None:
            self._open.pop(number, None)
            return
        if name not in self._names:
            self._change({name: _File()})
        elif "O_TRUNC" in arguments:
            self._names[name].write(_Write(call.end, 0, None))
        self._open[number] = self._names[name]
        self._positions[number] = self._names[name].size if "O_APPEND" in arguments else 0

    def _rename(self, name: str, first: str | None, last: str | None = None) -> None:
        file = self._names.get(first) if first is not None else None
        if file is None or first is None:
            return  # elsewhere; nothing comes from there
        change: dict[str, _File | None] = {} if name == "link" else {first: None}
        if last is not None:
            change[last] = file
        self._change(change)

    def _change(self, change: dict[str, _File | None]) -> None:
        self._waiting.append(change)
        _change(self._names, change)

    def _sync(self, file: _File | None, begin: int) -> None:
        n_kept = len(self._waiting)
        if file is not None:
            file.sync(begin)
            own = [n for n, change in enumerate(self._waiting, 1) if file in change.values()]
            n_kept = max(own, default=0)
        for change in self._waiting[:n_kept]:
            _change(self._kept, change)
        del self._waiting[:n_kept]

    def cut(self, directory: Path, chance: random.Random) -> None:
        """Write what is left to a directory, which is made."""
        directory.mkdir(parents=True)
        names = dict(self._kept)
        for change in self._waiting[: chance.randint(0, len(self._waiting))]:
            _change(names, change)
        for name, file in names.items():
            (directory / name).write_bytes(file.cut(chance))


_OF_NAMES: Final = frozenset({"openat", "rename", "unlink", "link"})


def _texts(arguments: str) -> list[bytes]:
    return [bytes.fromhex(i.replace("\\x", "")) for i in _TEXT.findall(arguments)]


def _change(names: dict[str, _File], change: dict[str, _File | None]) -> None:
    for name, file in change.items():
        if file is None:
            names.pop(name, None)
        else:
            names[name] = file
