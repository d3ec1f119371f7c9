"""Whether cursors did what docs/delivery.md says."""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from tests.torture.histories.record import History, Token, Visit, Wish
from tests.torture.histories.wire import EventId

MAX_LOST_S: Final = 5.0
"""Acknowledgements that a gateway has read for so long outlive ``kill -9``. They are written every
0.2 s, if the machine has time for it."""

OF_DISKS: Final = ("EIO", "ENOSPC", "some-EIO", "slow-disk", "memory", "files")
"""Faults while which nothing may be written, or late."""


class _Known(NamedTuple):
    """Ids that a server has read to be acknowledged, up to a moment."""

    at_s: float
    door: int
    ids: dict[int, EventId]


def check_cursors(history: History) -> Iterator[str]:
    """What is wrong with what readers with cursors got."""
    cursors: dict[str, list[tuple[Wish, Visit]]] = defaultdict(list)
    for wish, visits in history.visits.items():
        if wish.cursor is not None:
            cursors[wish.cursor] += [(wish, visit) for visit in visits]
    for cursor, of_it in cursors.items():
        of_it.sort(key=lambda i: i[1].begin_s)
        wish, visits = of_it[0][0], [visit for _, visit in of_it]
        for server, stored in history.stored.items():
            came: set[EventId] = set()
            for visit in visits:
                events = [i for i in visit.events() if i[1][0] == server]
                came |= {event_id for _, event_id, _ in events}
                yield from _check_visit(wish, events, stored)
            yield from _check_begins(wish, server, visits, stored)
            missing = [i for i, token in stored.items() if i not in came and wish.wants(token)]
            if missing:
                yield f"cursor {cursor}: {len(missing)} events never came, as {missing[0]}"
        yield from _check_positions(history, cursor, visits)
        yield from _check_parked(history, cursor, visits)


def _check_visit(
    wish: Wish, events: Sequence[tuple[float, EventId, Token]], stored: dict[EventId, Token]
) -> Iterator[str]:
    """Over a connection, each once, in order, without a hole."""
    ids = [event_id for _, event_id, _ in events]
    for before, after in itertools.pairwise(ids):
        if after <= before:
            yield f"{wish.name} got {after} behind {before}"
    if ids:
        there = {*ids}
        missing = [
            event_id
            for event_id, token in stored.items()
            if ids[0] < event_id < ids[-1] and event_id not in there and wish.wants(token)
        ]
        if missing:
            yield f"{wish.name} missed {len(missing)} events over a connection, as {missing[0]}"


def _check_begins(
    wish: Wish, server: int, visits: Sequence[Visit], stored: dict[EventId, Token]
) -> Iterator[str]:
    """A connection begins with what was not acknowledged, or before."""
    items = sorted(
        (at_s, what, number, detail)
        for number, visit in enumerate(visits)
        for what, at_s, detail in visit.items
        if what in {"events", "ack"}
    )
    acknowledged: EventId = (server, 0, 0)
    begun: set[int] = set()
    wanted = sorted(i for i, token in stored.items() if wish.wants(token))
    for _, what, number, detail in items:
        if what == "ack":
            acknowledged = max([acknowledged, *(i for i in detail[0] if i[0] == server)])
            continue
        ids = [event_id for event_id, _ in detail if event_id[0] == server]
        if not ids or number in begun:
            continue
        begun.add(number)
        skipped = [i for i in wanted if acknowledged < i < ids[0]]
        if skipped:
            yield (
                f"{wish.name}: a connection began with {ids[0]}, {acknowledged} was acknowledged,"
                f" {len(skipped)} events in between never came, as {skipped[0]}"
            )


def _check_positions(history: History, cursor: str, visits: Sequence[Visit]) -> Iterator[str]:
    """What was known to be acknowledged does not come again, unless a server was killed then."""
    known = [
        _Known(at_s, visit.door, {i[0]: i for ids, _ in acks for i in ids})
        for visit in visits
        for at_s, acks in _known(visit)
    ]
    known.sort(key=lambda i: i.at_s)
    for visit in visits:
        firsts: dict[int, EventId] = {}
        for _, event_id, _ in visit.events():
            firsts.setdefault(event_id[0], event_id)
        for i in known:
            if i.at_s >= visit.begin_s:
                break
            again = {s: first for s, first in firsts.items() if first <= i.ids.get(s, (s, 0, 0))}
            if again and not _may_go_back(history, i, visit):
                yield f"cursor {cursor} went back from {i.ids} to {again}"
                return


def _known(visit: Visit) -> Iterator[tuple[float, list[tuple[list[EventId], list[EventId]]]]]:
    """What a server had read to be acknowledged and parked, and when that was known."""
    waiting: list[tuple[int, tuple[list[EventId], list[EventId]]]] = []
    for what, at_s, detail in visit.items:
        if what == "ack":
            ids, parked, ping = detail
            waiting.append((ping, (ids, parked)))
        elif what == "known":
            yield at_s, [acks for ping, acks in waiting if ping <= detail]
            waiting = [i for i in waiting if i[0] > detail]


def _may_go_back(history: History, known: _Known, visit: Visit) -> bool:
    opened_s = visit.items[0][1] if visit.items else visit.begin_s
    if known.door != visit.door or any(
        i.backup_s <= opened_s and known.at_s <= i.back_s for i in history.restores
    ):
        return True
    return any(
        server == known.door and at_s <= opened_s and _was_unwritten(history, known, at_s)
        for at_s, server, is_kill in history.ends
        if is_kill
    )


def _was_unwritten(history: History, known: _Known, killed_s: float) -> bool:
    """Whether a server that was killed may not have written what it had read."""
    since_s = killed_s - known.at_s
    if since_s < 0:  # what was known was on its way
        return -since_s < MAX_LOST_S
    return since_s < MAX_LOST_S or any(
        i.what.split()[0] in (*OF_DISKS, "stop")
        and i.begin_s - MAX_LOST_S <= killed_s
        and i.end_s >= known.at_s
        for i in history.faults
    )


def _check_parked(history: History, cursor: str, visits: Sequence[Visit]) -> Iterator[str]:
    """What was parked is listed, if the server read that and was not set back."""
    if cursor not in history.parked or history.restores:
        return
    sent = {
        event_id
        for visit in visits
        for what, _, detail in visit.items
        if what == "ack"
        for event_id in detail[1]
    }
    for visit in visits:
        for at_s, acks in _known(visit):
            lost = {i for _, parked in acks for i in parked} - history.parked[cursor]
            if lost and not _was_killed_soon(history, _Known(at_s, visit.door, {})):
                yield f"cursor {cursor}: {lost} was parked, and is not listed"
    if strange := history.parked[cursor] - sent:
        yield f"cursor {cursor}: {strange} is listed, and nobody parked it"


def _was_killed_soon(history: History, known: _Known) -> bool:
    return any(
        is_kill and _was_unwritten(history, known, at_s) for at_s, _, is_kill in history.ends
    )
