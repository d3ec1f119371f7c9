"""Where "now" is: behind the last persisted event of each server. Runs on the event loop's thread.

A server answers in ascending order of its ids, from any id on. So the last one is found by halving:
some ten queries for one event each, however many events there are. Before, the latest event of
each type says which servers there are.
"""

from collections.abc import Iterable
from contextlib import aclosing

from eventer_bridge.core.paging import QueryCb, query_all
from eventer_bridge.model import INT64_MAX, EventId, QueryLatestParams, QueryServerParams


async def positions(query: QueryCb, server_ids: Iterable[int]) -> list[EventId]:
    """The end of what is persisted of each server, as far as the client may see it.

    Of ``server_ids``, and of those whose events are the latest of their types; without those that
    have no events. Raises as ``query``, and as ``paging.query_all``.
    """
    last = dict.fromkeys(server_ids, 0)
    async with aclosing(query_all(query, QueryLatestParams())) as latest:
        async for event in latest:
            last[event.id.server] = max(event.id.session, last.get(event.id.server, 0))
    for server_id, session in last.items():
        last[server_id] = await _last_session(query, server_id, session)
    return [EventId(i, session, INT64_MAX) for i, session in last.items() if session]


async def _last_session(query: QueryCb, server_id: int, session: int) -> int:
    """The last session of a server, which is this one or a later one."""
    step = 1
    while True:
        end = min(session + step, INT64_MAX)
        following = await _following(query, server_id, end)
        if following is None:
            break
        session, step = following, 2 * step
    while session < end:  # nothing is behind the end
        middle = (session + end) // 2
        following = await _following(query, server_id, middle)
        if following is None:
            end = middle
        else:
            session = following
    return session


async def _following(query: QueryCb, server_id: int, session: int) -> int | None:
    """The next session behind this one; None: there is none."""
    behind = EventId(server_id, session, INT64_MAX)
    params = QueryServerParams(server_id, persisted=True, max_results=1, last_event_id=behind)
    async with aclosing(query_all(query, params, limit=1)) as events:
        async for event in events:
            return event.id.session
    return None
