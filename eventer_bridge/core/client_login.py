"""Who a client is: it is let in, or declined, at once or after a while.

A client whose name or token is wrong waits longer for each answer, and is not heard meanwhile.

Runs on the event loop's thread.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from eventer_bridge import limits
from eventer_bridge.core.authentication import Admitted, DeclinedError, Login
from eventer_bridge.core.client_service import ClientService, ClientWire
from eventer_bridge.model import cut
from eventer_bridge.net.stats import CloseReason
from eventer_bridge.net.stream import Pause, Stream

audit = logging.getLogger("audit")


class ClientLogin:
    """See the module.

    Args:
        service: of the server.
        stream: the client's connection.
        wire: what is sent there.
    """

    __slots__ = ("_checking", "_delayed", "_service", "_stream", "_wire")

    def __init__(self, service: ClientService, stream: Stream[Any], wire: ClientWire[Any]) -> None:
        self._service = service
        self._stream = stream
        self._wire = wire
        self._checking: asyncio.Task[None] | None = None
        self._delayed: asyncio.TimerHandle | None = None

    @property
    def is_checking(self) -> bool:
        """Whether its token is being checked."""
        return self._checking is not None

    def begin(self, name: str, token: str | None, accept: Callable[[Admitted], None]) -> None:
        """Have a client say who it is.

        Args:
            name: as the client gave it.
            token: as the client gave it; None: it gave none.
            accept: called if it is let in, now or later.
        """
        stream = self._stream
        stream.client = cut(name)
        authenticator = self._service.authenticator
        try:
            names = authenticator.names_of(stream.ssl_object)
            login = Login(name, token, names, stream.slot.address)
            admitted = authenticator.authenticate(login)
        except DeclinedError as e:
            self.decline_later(e)
            return
        if isinstance(admitted, Admitted):
            accept(admitted)
        else:
            stream.pause_reading(Pause.LOGIN)
            self._checking = self._service.spawn(self._check(admitted, accept))

    async def _check(self, login: Awaitable[Admitted], accept: Callable[[Admitted], None]) -> None:
        """Accept or decline a client whose token takes long to check; ends if it leaves."""
        try:
            admitted = self.admitted_again(await login)
        except DeclinedError as e:
            self.decline_later(e)
        except Exception as e:
            self._stream.on_failed(e)
        else:
            accept(admitted)
        self._checking = None
        self._stream.resume_reading(Pause.LOGIN)

    def admitted_again(self, admitted: Admitted) -> Admitted:
        """A client after a while: the configuration may have changed.

        Raises:
            DeclinedError: it is not let in any more.
        """
        rights = self._service.authenticator.readmit(
            admitted.name, admitted.proof, self._stream.ssl_object
        )
        return admitted._replace(rights=rights)

    def decline(self, reason: str, cause: str | None = None) -> None:
        """Close the connection of a client that cannot be accepted.

        Args:
            reason: for the client.
            cause: more than it is told, for the log.
        """
        if self._stream.close_reason is not None:
            return
        self._service.stats.declined += 1
        reason = cut(reason)
        self._wire.send_declined(reason)
        detail = reason if cause is None else f"{reason}: {cause}"
        audit.info("declined", extra={**self._stream.log_extra, "reason": detail})
        # the client gets time to read why, and to close first (001)
        self._stream.close(
            CloseReason.DECLINED,
            detail=detail,
            level=logging.WARNING,
            linger_s=limits.DECLINED_LINGER_S,
        )

    def decline_later(self, error: DeclinedError) -> None:
        """Decline at once or, if it guesses, after a while in which it is not heard."""
        delay_s = self._stream.slot.login_failed()
        if not delay_s:
            self.decline(str(error), error.cause)
            return
        self._stream.pause_reading(Pause.DECLINED)
        self._delayed = asyncio.get_running_loop().call_later(
            delay_s, self.decline, str(error), error.cause
        )

    def end(self) -> None:
        """The client is gone."""
        if self._delayed is not None:
            self._delayed.cancel()
        if self._checking is not None:
            self._checking.cancel()
