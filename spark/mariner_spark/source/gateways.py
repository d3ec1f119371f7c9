"""The gateways of a stream: asked one after the other, those that are away a little later again.

Connections are kept by their process from one batch to the next, and end with it: a gateway
registers events when a client connects and when it leaves, so that a connection for each batch
would make a next batch out of nothing. One that was lost is made again when it is needed.
"""

import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from mariner_spark import limits
from mariner_spark.errors import GatewayAwayError
from mariner_spark.source.gateway import GatewayClient
from mariner_spark.source.options import GatewayOptions

mlog = logging.getLogger(__name__)

T = TypeVar("T")

_open: dict[GatewayOptions, GatewayClient] = {}


class Backoff:
    """Waits longer and longer between two attempts, and says what for."""

    def __init__(self) -> None:
        self.reason = ""
        self._wait_s = limits.RETRY_MIN_S
        self._until_s = 0.0

    @property
    def remaining_s(self) -> float:
        """Seconds until the next attempt; not above 0 when it is due."""
        return self._until_s - time.monotonic()

    def fail(self, reason: str) -> None:
        """An attempt failed."""
        if reason != self.reason:
            mlog.warning("waiting: %s", reason)
        self.reason = reason
        self._until_s = time.monotonic() + self._wait_s * random.uniform(0.5, 1)  # noqa: S311
        self._wait_s = min(2 * self._wait_s, limits.RETRY_MAX_S)

    def wait(self, reason: str) -> None:
        """An attempt failed; wait until the next one is due."""
        self.fail(reason)
        time.sleep(max(self.remaining_s, 0))


class GatewayPool:
    """See the module.

    Args:
        options: the gateways. The one that answered last is asked first.
    """

    def __init__(self, options: Iterable[GatewayOptions]) -> None:
        self._options = list(options)
        self._away: dict[GatewayOptions, Backoff] = {}

    @property
    def is_anyone_away(self) -> bool:
        """Whether a gateway did not answer when it was last asked."""
        return bool(self._away)

    @property
    def is_everyone_away(self) -> bool:
        """Whether no gateway answered when they were last asked."""
        return len(self._away) == len(self._options)

    @property
    def reasons(self) -> str:
        """Why those are away that are."""
        return "; ".join(i.reason for i in self._away.values())

    def ask(self, question: Callable[[GatewayClient], T | None]) -> Iterator[T]:
        """Ask all of them, as far as the answers are looked at.

        Args:
            question: asks one of them; None: it has no answer.

        Yields:
            Answers of those that are not away.

        Raises:
            OptionError: a gateway declines us.
            MarinerError, SourceError: an answer cannot be right.
        """
        for options in tuple(self._options):
            patience = self._away.get(options)
            if patience is not None and patience.remaining_s > 0:
                continue
            try:
                answer = question(_connected(options))
            except GatewayAwayError as e:
                _drop(options)
                self._away.setdefault(options, Backoff()).fail(e.reason)
                continue
            self._away.pop(options, None)
            if answer is not None:
                self._options.remove(options)
                self._options.insert(0, options)
                yield answer

    def close(self) -> None:
        """Close the connections."""
        for options in self._options:
            _drop(options)


def _connected(options: GatewayOptions) -> GatewayClient:
    gateway = _open.get(options)
    if gateway is not None and gateway.is_open:
        return gateway
    _drop(options)
    gateway = _open[options] = GatewayClient(options)
    return gateway


def _drop(options: GatewayOptions) -> None:
    gateway = _open.pop(options, None)
    if gateway is not None:
        gateway.close()
