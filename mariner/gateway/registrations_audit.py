"""How many events each client registered, in the audit trail: counts, once a minute.

Runs on the event loop's thread.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from eventer_bridge.core.quotas import Accounts
from mariner import limits

audit = logging.getLogger("audit")


class RegistrationsAudit:
    """See the module.

    Args:
        accounts: returns those of each wire.
        is_wanted: whether the configuration asks for it now.
    """

    def __init__(
        self, accounts: Callable[[], Mapping[str, Accounts]], is_wanted: Callable[[], bool]
    ) -> None:
        self._accounts = accounts
        self._is_wanted = is_wanted
        self._counted: dict[tuple[str, str], int] = {}
        self._since_s = time.monotonic()

    async def run(self) -> None:
        """Write lines until it is cancelled."""
        while True:
            await asyncio.sleep(limits.AUDITED_REGISTRATIONS_S)
            self.write()

    def write(self) -> None:
        """Write what each client registered since the last time, some clients in a line."""
        now_s = time.monotonic()
        before, since_s = self._counted, self._since_s
        self._since_s = now_s
        self._counted = {
            (wire, account.name): account.n_registered
            for wire, accounts in self._accounts().items()
            for account in accounts
        }
        if not self._is_wanted():
            return
        by_wire: dict[str, list[tuple[str, int]]] = {}
        for (wire, name), count in self._counted.items():
            earlier = before.get((wire, name), 0)
            # a client that was configured anew begins anew
            if n_events := count - earlier if count >= earlier else count:
                by_wire.setdefault(wire, []).append((name, n_events))
        for wire, counts in by_wire.items():
            for first in range(0, len(counts), limits.AUDITED_ITEMS):
                events = dict(counts[first : first + limits.AUDITED_ITEMS])
                extra = {"wire": wire, "events": events, "seconds": round(now_s - since_s, 1)}
                audit.info("registered", extra=extra)
