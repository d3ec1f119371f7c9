"""Whether a history is one that docs/delivery.md allows."""

import bisect
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tests.torture.histories.check_cursors import check_cursors
from tests.torture.histories.record import (
    CHAINED,
    KEPT,
    PLAIN,
    SHORT,
    Attempt,
    History,
    Token,
    Visit,
    Wish,
)
from tests.torture.histories.wire import EventId

Request = tuple[int, int]
"""Number of a writer, and of its request."""


def check(history: History) -> Iterator[str]:
    """What is wrong with it."""
    yield from _check_ids(history)
    yield from _check_stored(history)
    yield from _check_writers(history)
    yield from _check_order(history)
    for wish, visits in history.visits.items():
        if wish.start:
            yield from _check_start(history, wish, visits)
        elif wish.cursor is None:
            yield from _check_live(history, wish, visits)
    yield from check_cursors(history)


def _check_ids(history: History) -> Iterator[str]:
    """No id is given to two events, whoever saw them."""
    known: dict[EventId, Token] = {}
    for server, stored in history.stored.items():
        known |= stored
        if [*stored] != sorted(stored) or any(i[0] != server for i in stored):
            yield f"server {server}: what is stored is not in the order of its ids"
    for wish, visits in history.visits.items():
        for visit in visits:
            for _, event_id, token in visit.events():
                if known.setdefault(event_id, token) != token:
                    yield f"{event_id} is {known[event_id]}, and {wish.name} saw {token}"
    for attempt in history.attempts:
        for part, event_id in enumerate(attempt.ids):
            asked = attempt.writer, attempt.request, part
            if event_id in known and known[event_id][:3] != asked:
                yield f"{event_id} is {known[event_id]}, and was the answer to {asked}"


def _check_stored(history: History) -> Iterator[str]:
    """Requests are stored whole, each in one session, in order; timestamps never go back."""
    for server, stored in history.stored.items():
        for session, events in itertools.groupby(stored.items(), lambda i: i[0][1]):
            tokens = [token for _, token in events]
            if tokens[0].kind == SHORT:
                continue  # some may be deleted
            wanted = [*range(tokens[0].n_parts)]
            if [i.part for i in tokens] != wanted or len({i[:2] for i in tokens}) > 1:
                yield f"session {server}/{session} is stored in part: {tokens[:3]}…"
        times = history.timestamps[server]
        for before, after in itertools.pairwise(zip(times, stored, strict=True)):
            if after[0] < before[0]:
                yield f"server {server}: timestamps go back, from {before} to {after}"
                break


def _check_writers(history: History) -> Iterator[str]:
    """What was acknowledged is stored once, what was refused is not."""
    copies: dict[Request, dict[tuple[int, int], list[EventId]]] = defaultdict(dict)
    for stored in history.stored.values():
        for event_id, token in stored.items():
            copies[token[:2]].setdefault(event_id[:2], []).append(event_id)
    kinds = {token.writer: token.kind for i in history.stored.values() for token in i.values()}
    attempts: dict[Request, list[Attempt]] = defaultdict(list)
    for attempt in history.attempts:
        attempts[attempt.writer, attempt.request].append(attempt)
    for request, of_it in attempts.items():
        is_kept = kinds.get(request[0], KEPT) == KEPT
        yield from _check_request(history, request, of_it, copies.pop(request, {}), is_kept=is_kept)
    if copies:
        yield f"{len(copies)} requests are stored that nobody sent, as {next(iter(copies))}"


def _check_request(
    history: History,
    request: Request,
    attempts: Sequence[Attempt],
    copies: dict[tuple[int, int], list[EventId]],
    *,
    is_kept: bool,
) -> Iterator[str]:
    name = f"request {request[0]}-{request[1]}"
    answered = [i for i in attempts if i.outcome == "ok"]
    for attempt in answered:
        is_there = [*attempt.ids] in copies.values()
        if is_kept and not is_there and not history.may_be_lost(attempt.end_s):
            yield f"{name}: answered with {attempt.ids[:2]}…, stored are {[*copies][:3]}"
    if copies and all(i.outcome == "refused" for i in attempts):
        yield f"{name} was refused, and is stored: {[*copies]}"
    if attempts[0].mode == PLAIN:
        if len(copies) > 1:
            yield f"{name} was sent once, and is stored {len(copies)} times: {[*copies]}"
        return
    if not answered:
        yield f"{name} was never answered"
    servers = {server for server, _ in copies}
    if len(copies) > len(servers) or not servers <= {i.door for i in attempts}:
        yield f"{name} is stored twice: {[*copies]}"
    for before, after in itertools.pairwise(answered):
        is_same = before.ids == after.ids
        if not is_same and len(servers) < 2 and not history.may_be_lost(before.end_s):
            yield f"{name}: answered with {before.ids[:2]}…, and then with {after.ids[:2]}…"


def _check_order(history: History) -> Iterator[str]:
    """What was sent after an answer has a later id; so has what was sent later, where promised."""
    begun: dict[Request, float] = {}
    for attempt in history.attempts:
        request = attempt.writer, attempt.request
        begun[request] = min(attempt.begin_s, begun.get(request, attempt.begin_s))
    answered = [i for i in history.attempts if i.outcome == "ok" and i.ids]
    for server in history.stored:
        ours = [i for i in answered if i.ids[0][0] == server]
        ends = sorted((i.end_s, i.ids[0][1]) for i in ours)
        greatest = [*itertools.accumulate((session for _, session in ends), max)]
        for attempt in ours:
            first_s = begun[attempt.writer, attempt.request]
            before = bisect.bisect_left(ends, (first_s, 0))
            if before and greatest[before - 1] >= attempt.ids[0][1]:
                yield (
                    f"request {attempt.writer}-{attempt.request} has {attempt.ids[0]}, although it"
                    f" was sent after {greatest[before - 1]} was answered"
                )
                break
    by_connection: dict[tuple[int, int], list[Attempt]] = defaultdict(list)
    for attempt in answered:
        if attempt.mode == PLAIN:
            by_connection[attempt.connection, attempt.writer].append(attempt)
    for of_it in by_connection.values():
        if [i.ids[0] for i in of_it] != sorted(i.ids[0] for i in of_it):
            yield f"requests over connection {of_it[0].connection} are stored in another order"
    chained = {i.writer for i in history.attempts if i.mode == CHAINED}
    # of a pair, a server may get again what only the other one had
    for stored in history.stored.values() if len(history.stored) == 1 else ():
        last = dict.fromkeys(chained, 0)
        for event_id, token in stored.items():
            if token.request < last.get(token.writer, 0) and not history.restores:
                yield f"{event_id} is of request {token.request}, behind {last[token.writer]}"
                return
            last[token.writer] = token.request


# --- readers ------------------------------------------------------------------------------


def by_server(
    events: Iterable[tuple[float, EventId, Token]],
) -> dict[int, list[tuple[float, EventId, Token]]]:
    """Events by their servers, in the order in which they came."""
    found: dict[int, list[tuple[float, EventId, Token]]] = defaultdict(list)
    for event in events:
        found[event[1][0]].append(event)
    return found


MOST_TOLD: Final = 3
"""Ids of a violation that are told."""


def _check_start(history: History, wish: Wish, visits: Sequence[Visit]) -> Iterator[str]:
    """Each event came once, in order; or the reader was told."""
    begins = [n for n, visit in enumerate(visits) if visit.is_first]
    for begin, end in itertools.pairwise([*begins, len(visits)]):
        is_last = end == len(visits)
        life = visits[begin:end]
        came = by_server(event for visit in life for event in visit.events())
        for server, stored in history.stored.items():
            events = came.get(server, [])
            yield from _check_ascending(wish, events)
            yield from _check_unstored(history, wish, events, stored)
            ids = {event_id for _, event_id, _ in events}
            until = None if is_last else max(ids, default=(0, 0, 0))
            missing = [
                event_id
                for event_id, token in stored.items()
                if event_id not in ids
                and wish.wants(token)
                and (until is None or event_id < until)
                and not (token.kind == SHORT and history.restores)  # it was told to be deleted once
            ]
            if missing:
                yield f"{wish.name} missed {_told(missing)}: {_where(life, missing[0])}"
        if is_last and SHORT in wish.kinds and not history.restores:
            yield from _check_deleted(history, wish, came, life)


def _check_ascending(wish: Wish, events: Sequence[tuple[float, EventId, Token]]) -> Iterator[str]:
    for before, after in itertools.pairwise(events):
        if after[1] <= before[1]:
            yield f"{wish.name} got {after[1]} behind {before[1]}"
            return
        if not wish.wants(after[2]):
            yield f"{wish.name} got what it did not ask for: {after[2]}"
            return


def _check_unstored(
    history: History,
    wish: Wish,
    events: Sequence[tuple[float, EventId, Token]],
    stored: dict[EventId, Token],
) -> Iterator[str]:
    strange = [
        event_id
        for at_s, event_id, token in events
        if event_id not in stored and token.kind == KEPT and not history.may_be_lost(at_s)
    ]
    if strange:
        yield f"{wish.name} saw what is not stored: {_told(strange)}"


def _check_deleted(
    history: History,
    wish: Wish,
    came: dict[int, list[tuple[float, EventId, Token]]],
    visits: Iterable[Visit],
) -> Iterator[str]:
    """What retention deleted came, or the reader was told since that something is deleted."""
    told_s: dict[int, float] = defaultdict(float)
    for visit in visits:
        for what, at_s, detail in visit.items:
            if what == "gap":
                told_s[detail[0]] = at_s
    ids = {event_id for events in came.values() for _, event_id, _ in events}
    kinds = {token.writer: token.kind for i in history.stored.values() for token in i.values()}
    missing = [
        event_id
        for attempt in history.attempts
        if kinds.get(attempt.writer) == SHORT
        for event_id in attempt.ids
        if event_id not in ids and attempt.begin_s > told_s[event_id[0]]
    ]
    if missing:
        yield f"{wish.name} missed what was deleted, and was not told: {_told(missing)}"


def _check_live(history: History, wish: Wish, visits: Sequence[Visit]) -> Iterator[str]:
    """Over each connection, without a gap, in order."""
    for number, visit in enumerate(visits):
        for server, events in by_server(visit.events()).items():
            stored = history.stored.get(server, {})
            yield from _check_ascending(wish, events)
            if wish.persisted:
                yield from _check_unstored(history, wish, events, stored)
            yield from (
                f"{wish.name}, connection {number}: missed {_told(missing)}"
                for missing in [holes(wish, events, stored)]
                if missing
            )


def holes(
    wish: Wish, events: Sequence[tuple[float, EventId, Token]], stored: dict[EventId, Token]
) -> list[EventId]:
    """What a reader did not get between the first and the last that it got, of one server."""
    ids = {event_id for _, event_id, _ in events}
    first, last = min(ids), max(ids)
    return [
        event_id
        for event_id, token in stored.items()
        if first < event_id < last
        and event_id not in ids
        and token.kind == KEPT
        and wish.wants(token)
    ]


def _told(ids: Sequence[EventId]) -> str:
    sessions = Counter(i[:2] for i in ids)
    return f"{len(ids)} events of {len(sessions)} sessions, {ids[0]} to {ids[-1]}"


def _where(visits: Sequence[Visit], missing: EventId) -> str:
    """Between which events of the same server it should have come."""
    before: tuple[int, EventId] | None = None
    for number, visit in enumerate(visits):
        for _, event_id, _ in visit.events():
            if event_id[0] != missing[0]:
                continue
            if event_id > missing:
                return f"between {before} and {number, event_id} (connection, id)"
            before = number, event_id
    return f"behind {before} (connection, id)"
