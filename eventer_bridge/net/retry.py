"""The retry policy for unreachable peers.

Each failed attempt is followed by another after a random wait that grows to ten seconds, so
that thousands of clients of one server do not reconnect at the same moment. Each reason is
logged once.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import tenacity

from eventer_bridge.errors import EventerBridgeError
from eventer_bridge.net import limits

T = TypeVar("T")


async def keep_trying(
    attempt: Callable[[], Awaitable[T]],
    errors: type[Exception] | tuple[type[Exception], ...],
    log: logging.Logger,
    text: str,
    extra: Mapping[str, object],
) -> T:
    """Retry until success or an unexpected error.

    Args:
        attempt: the operation.
        errors: errors worth a retry.
        log: logger of failures.
        text: message of failures, as "feed is not connected".
        extra: logged in addition to the reason.
    """
    last_reason: str | None = None

    def log_failure(state: tenacity.RetryCallState) -> None:
        nonlocal last_reason
        assert state.outcome is not None
        error = state.outcome.exception()
        is_expected = isinstance(error, (OSError, EventerBridgeError))
        reason = str(error) if is_expected else repr(error)
        level = logging.DEBUG if reason == last_reason else logging.WARNING
        last_reason = reason
        exc_info = None if is_expected else error
        log.log(level, text, extra={**extra, "reason": reason}, exc_info=exc_info)

    attempts = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(errors),
        wait=tenacity.wait_random_exponential(
            multiplier=limits.RECONNECT_MIN_S, max=limits.RECONNECT_MAX_S
        ),
        before_sleep=log_failure,
    )
    return await attempts(attempt)
