"""The gateways of a stream: queried one after the other; unavailable ones are retried later.

A process keeps its connections from one batch to the next, until it exits: a gateway registers
events when a client connects and when it leaves, so a connection per batch would always cause a
next batch. A lost connection is opened again on demand.
"""

import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from mariner_spark import limits
from mariner_spark.errors import GatewayUnavailableError
from mariner_spark.source.gateway import GatewayClient
from mariner_spark.source.options import GatewayOptions

mlog = logging.getLogger(__name__)

T = TypeVar("T")

_open: dict[GatewayOptions, GatewayClient] = {}


class Backoff:
    """Exponential backoff between two attempts, which logs each new reason."""

    def __init__(self) -> None:
        self.reason = ""
        self._wait_s = limits.RETRY_MIN_S
        self._until_s = 0.0

    @property
    def remaining_s(self) -> float:
        """Seconds until the next attempt; 0 or less when it is due."""
        return self._until_s - time.monotonic()

    def fail(self, reason: str) -> None:
        """Record a failed attempt."""
        if reason != self.reason:
            mlog.warning("waiting: %s", reason)
        self.reason = reason
        self._until_s = time.monotonic() + self._wait_s * random.uniform(0.5, 1)  # noqa: S311
        self._wait_s = min(2 * self._wait_s, limits.RETRY_MAX_S)

    def wait(self, reason: str) -> None:
        """Record a failed attempt, and wait until the next one is due."""
        self.fail(reason)
        time.sleep(max(self.remaining_s, 0))


class GatewayPool:
    """See the module.

    Args:
        options: the gateways. The one that answered last is queried first.
    """

    def __init__(self, options: Iterable[GatewayOptions]) -> None:
        self._options = list(options)
        self._unavailable: dict[GatewayOptions, Backoff] = {}

    @property
    def is_any_unavailable(self) -> bool:
        """Whether a gateway did not answer its last query."""
        return bool(self._unavailable)

    @property
    def are_all_unavailable(self) -> bool:
        """Whether no gateway answered its last query."""
        return len(self._unavailable) == len(self._options)

    @property
    def reasons(self) -> str:
        """Reasons of the unavailable gateways."""
        return "; ".join(i.reason for i in self._unavailable.values())

    def query_each(self, query: Callable[[GatewayClient], T | None]) -> Iterator[T]:
        """Query the gateways one after the other, lazily.

        Args:
            query: queries one gateway; returns None if that gateway has no answer.

        Yields:
            Answers of the available gateways.

        Raises:
            OptionError: a gateway refuses this client.
            MarinerError, SourceError: a gateway violated the protocol.
        """
        for options in tuple(self._options):
            backoff = self._unavailable.get(options)
            if backoff is not None and backoff.remaining_s > 0:
                continue
            try:
                answer = query(_connected(options))
            except GatewayUnavailableError as e:
                _drop(options)
                self._unavailable.setdefault(options, Backoff()).fail(e.reason)
                continue
            self._unavailable.pop(options, None)
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
