"""Coming back to a peer that is away: the one policy for it.

An attempt that fails is followed by another one, after a random wait that grows to ten seconds,
so that thousands who lost the same server do not come back at the same moment. The log tells each
reason once.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import tenacity

from eventer_bridge import limits
from eventer_bridge.errors import EventerBridgeError

T = TypeVar("T")


async def keep_trying(
    attempt: Callable[[], Awaitable[T]],
    errors: type[Exception] | tuple[type[Exception], ...],
    log: logging.Logger,
    text: str,
    extra: Mapping[str, object],
) -> T:
    """Try until it succeeds, or raises something unexpected.

    Args:
        attempt: is tried.
        errors: what may be otherwise the next time.
        log: where failures are told.
        text: what is told there, as "feed is not connected".
        extra: what is told besides the reason.
    """
    last_reason: str | None = None

    def tell(state: tenacity.RetryCallState) -> None:
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
        before_sleep=tell,
    )
    return await attempts(attempt)
