"""Every acknowledgement leaves after the sync of what it acknowledges, as the kernel saw it.

The gateway runs under strace. For every event: the write to the log that holds it, then a
sync of that log that begins after the write ended, then the write to the socket that holds
the acknowledgement, which begins after the sync ended.
"""

import random
import re
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.gateway import gateway
from tests.torture.clients import loaded
from tests.torture.ledger import Ledger, ViolationError, entry_of
from tests.torture.report import Progress
from tests.torture.strace import Call, read_record, require_strace, strace

_MARK: Final = re.compile(r"<(\d+)\.(\d+)>")
_MESSAGE: Final = '{\\"msg_type\\":\\"'
_LOG: Final = re.compile(r"^(?:write|pwrite64|writev)\(\d+<[^>]*\.log>, ")
_SYNC: Final = re.compile(r"^fdatasync\(\d+<[^>]*\.log>\) += 0")
_SEND: Final = re.compile(
    r"^(?:write|writev|sendto|sendmsg)\((\d+)<(?:socket|TCP)[^>]*>(.*)", re.DOTALL
)

_SYSTEM_CALLS: Final = "trace=fdatasync,write,writev,pwrite64,sendto,sendmsg"

Key = tuple[str, str]
"""Number of a request, index of an event."""


class _Record(NamedTuple):
    logged: dict[Key, Call]
    syncs: list[Call]
    acknowledged: dict[Key, Call]


async def run(directory: Path, rounds: int, chance: random.Random, progress: Progress) -> str:
    """Look at ``rounds`` times 100 events.

    Raises:
        ViolationError: an acknowledgement was sent too early.
        UnavailableError: there is no strace.
    """
    require_strace()
    ledger = Ledger()
    output = directory / "strace.txt"
    # whole buffers, and descriptors with what they are
    wrapper = strace(output, "-s", "1000000", "-y", "-e", _SYSTEM_CALLS)
    async with gateway(directory, wrapper=wrapper) as running:
        for n in range(1, rounds + 1):
            async with loaded(running, ledger, n_clients=chance.randrange(1, 4)) as load:
                await load.until_acknowledged(100)
            progress(n, rounds)
    record = _read(output)
    for event in ledger.acknowledged.values():
        entry = entry_of(event)
        _check(record, (str(entry.request), str(entry.position)))
    return (
        f"{len(ledger.acknowledged)} events acknowledged, each after one of"
        f" {len(record.syncs)} syncs that began after it was written"
    )


def _read(output: Path) -> _Record:
    record = _Record({}, [], {})
    unfinished: dict[str, str] = {}  # type of the message that a socket is within
    for call in read_record(output):
        if _SYNC.match(call.text):
            record.syncs.append(call)
        elif _LOG.match(call.text):
            record.logged.update(dict.fromkeys(_MARK.findall(call.text), call))
        elif send := _SEND.match(call.text):
            socket, data = send.groups()
            rest, *messages = data.split(_MESSAGE)
            parts = [(unfinished.get(socket, ""), rest)]
            parts += [(message.partition("\\")[0], message) for message in messages]
            unfinished[socket] = parts[-1][0]
            for msg_type, text in parts:
                if msg_type == "register_res":
                    for key in _MARK.findall(text):
                        record.acknowledged.setdefault(key, call)
    return record


def _check(record: _Record, key: Key) -> None:
    logged, sent = record.logged.get(key), record.acknowledged.get(key)
    if logged is None or sent is None:
        raise ViolationError(f"request {key} was acknowledged, but strace did not see it")
    if not any(logged.end < i.begin and i.end < sent.begin for i in record.syncs):
        raise ViolationError(f"request {key} was acknowledged before it was synced")
