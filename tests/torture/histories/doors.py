"""Where the servers are, for clients that find one that works, and lose patience."""

import itertools
import random
from collections.abc import Sequence
from typing import Any, Final

from tests.support.proxy import Proxy
from tests.torture.histories.wire import Connection, DeclinedError, LostError, connect

RETRY_S: Final = 0.05
"""Between two tries to connect."""

ABANDONED: Final = 0.2
"""How often a connection is left open when another one is made."""

MAX_ABANDONED: Final = 20


class Doors:
    """See the module.

    Args:
        links: a proxy in front of each server.

    Attributes:
        patience_s: how long clients wait for anything.
    """

    def __init__(self, links: Sequence[Proxy]) -> None:
        self.patience_s = 2.0
        self._links = links
        self._places: dict[Connection, tuple[int, int]] = {}
        self._abandoned: list[Connection] = []
        self._numbers = itertools.count(1)

    def door(self, connection: Connection) -> int:
        """The server's number, from 1."""
        return self._places[connection][0]

    def number(self, connection: Connection) -> int:
        """The connection's, of all that there were."""
        return self._places[connection][1]

    def choose(self, chance: random.Random) -> int:
        """A server's number."""
        return chance.randint(1, len(self._links))

    async def enter(
        self,
        chance: random.Random,
        *,
        only_active: bool,
        door: int | None = None,
        is_slow: bool = False,
        **init: Any,
    ) -> Connection | None:
        """Connect to a server; None: it does not work.

        Args:
            chance: which server.
            only_active: whether it must be OPERATIONAL.
            door: which server, if not any.
            is_slow: as of ``connect``, as is the rest.
            init: see there.

        Raises:
            DeclinedError: who asks for a replay was declined.
        """
        door = door or self.choose(chance)
        try:
            connection = await connect(
                self._links[door - 1].port, self.patience_s, is_slow=is_slow, **init
            )
        except LostError:
            return None
        except DeclinedError:
            if init:
                raise
            return None
        if only_active and connection.status != "OPERATIONAL":
            connection.close()
            return None
        self._places[connection] = door, next(self._numbers)
        return connection

    def leave(self, connection: Connection, chance: random.Random) -> None:
        """Close a connection, or leave it open and unread."""
        del self._places[connection]
        if chance.random() < ABANDONED:
            self._abandoned.append(connection)
            if len(self._abandoned) > MAX_ABANDONED:
                self._abandoned.pop(0).close()
        else:
            connection.close()

    async def close(self) -> None:
        """Close what was left open."""
        for connection in self._abandoned:
            connection.close()
            await connection.wait_closed()
        self._abandoned.clear()
