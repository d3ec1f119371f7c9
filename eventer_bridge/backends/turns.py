"""Who reads next: queries that wait, of many clients.

Those that had no turn yet and those that had one wait in lines of their own. Each line
gets half of the time if both have somebody in it. So a cheap query, which needs a single
turn, does not wait behind costly ones, however many they are; and these go on, however
many cheap ones come. In each line clients take turns: nobody comes first by asking more.

Pure bookkeeping, without threads or locks.
"""

from collections import Counter, deque
from collections.abc import Iterator
from typing import Generic, TypeVar

from eventer_bridge import limits

T = TypeVar("T")


class QueryLine(Generic[T]):
    """What waits, by client; one of each client in turn."""

    def __init__(self) -> None:
        self._by_client: dict[str, deque[T]] = {}  # in the order of their turns
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[T]:
        for waiting in self._by_client.values():
            yield from waiting

    @property
    def clients(self) -> Iterator[str]:
        """Those who wait, in the order of their turns."""
        return iter(self._by_client)

    def append(self, client: str, item: T) -> None:
        """Wait."""
        self._by_client.setdefault(client, deque()).append(item)
        self._size += 1

    def pop(self, client: str) -> T:
        """Take the first of a client, whose next turn comes after that of all others."""
        waiting = self._by_client.pop(client)
        item = waiting.popleft()
        if waiting:
            self._by_client[client] = waiting
        self._size -= 1
        return item

    def remove(self, client: str, item: T) -> None:
        """Wait no longer."""
        waiting = self._by_client[client]
        waiting.remove(item)
        if not waiting:
            del self._by_client[client]
        self._size -= 1


class Places:
    """A number of places, of which a client may have as many as are left to others."""

    def __init__(self) -> None:
        self.n_taken = 0
        self._n_taken_by: Counter[str] = Counter()

    def is_free(self, client: str, n_places: int) -> bool:
        """Whether a client may take another of that many places."""
        return self._n_taken_by[client] < n_places - self.n_taken

    def take(self, client: str) -> None:
        """A client takes one."""
        self.n_taken += 1
        self._n_taken_by[client] += 1

    def leave(self, client: str) -> None:
        """A client gives one back."""
        self.n_taken -= 1
        self._n_taken_by[client] -= 1
        if not self._n_taken_by[client]:
            del self._n_taken_by[client]


class QueryTurns(Generic[T]):
    """See the module.

    A query is added, begun by a turn, put back after it any number of times, and ended.

    Attributes:
        new: those that had no turn.
        paused: those that had one, and wait for another.
    """

    def __init__(self) -> None:
        self.new: QueryLine[T] = QueryLine()
        self.paused: QueryLine[T] = QueryLine()
        self._begun = Places()
        self._advance_s = 0.0  # by which new ones had more time than paused ones

    @property
    def n_begun(self) -> int:
        """Those that had a turn and did not end."""
        return self._begun.n_taken

    def add(self, client: str, item: T) -> None:
        """A query of a client came."""
        self.new.append(client, item)

    def forget_new(self) -> None:
        """No more is begun."""
        self.new = QueryLine()

    def put_back(self, client: str, item: T) -> None:
        """Its turn is over, and it needs another."""
        self.paused.append(client, item)

    def end(self, client: str) -> None:
        """A query that had a turn is done."""
        self._begun.leave(client)

    def next(self) -> T | None:
        """Whose turn it is; None where nobody waits who may begin or go on."""
        client = self._next_new()
        if self.paused and (client is None or self._advance_s > 0):
            return self.paused.pop(next(self.paused.clients))
        if client is None:
            return None
        self._begun.take(client)
        return self.new.pop(client)

    def charge(self, seconds: float, *, is_first: bool) -> None:
        """A turn of so many seconds is over; ``is_first``: the first one of its query."""
        advance_s = self._advance_s + (seconds if is_first else -seconds)
        self._advance_s = min(max(advance_s, -limits.READER_TURN_S), limits.READER_TURN_S)

    def _next_new(self) -> str | None:
        """Who may begin a query."""
        n_places = limits.MAX_QUERIES_BEGUN
        if self._begun.n_taken == n_places:
            return None
        return next((i for i in self.new.clients if self._begun.is_free(i, n_places)), None)
