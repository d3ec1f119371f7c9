"""Logins: who may see the page. Sessions are kept here; the browser has a random key of one.

Passwords are compared as tokens of clients are (``mariner token``), in turns, so that guessing is
slow for all guessers together (``scrypt_checks``). The answers to an address that guesses are
delayed, and its connections with them. A wrong name takes as long as a wrong password, and gets the
same answer. What waits is bounded by the slots of new connections.
"""

import asyncio
import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from eventer_bridge.core import tokens
from eventer_bridge.core.scrypt_checks import ScryptChecks
from eventer_bridge.core.tokens import TokenHash
from eventer_bridge.net import Slot
from mariner_console import limits
from mariner_console.config import User, passwords

_NOBODY: Final = (TokenHash(bytes(32), bytes(16)),)
"""What the password of an unknown user is compared with: no password has this hash."""


class UserSession:
    """Someone who is logged in.

    Attributes:
        user: who.
    """

    def __init__(self, user: User, until_s: float) -> None:
        self.user: Final = user
        self._until_s = until_s

    @property
    def is_valid(self) -> bool:
        """Whether it has neither ended nor expired."""
        return time.monotonic() < self._until_s

    def end(self) -> None:
        """Log out."""
        self._until_s = 0.0


class Logins:
    """See the module. Belongs to the event loop's thread; to be closed after use.

    Args:
        users: who may log in.

    Raises:
        ConfigurationError: a password is not a hash.
    """

    def __init__(self, users: Sequence[User]) -> None:
        self._users = {
            i.name: (i, passwords(i, f"users[{index}].password")) for index, i in enumerate(users)
        }
        self._checks = ScryptChecks()
        self._has_chosen = any(i.hash.salt for _, known in self._users.values() for i in known)
        self._logins: OrderedDict[bytes, UserSession] = OrderedDict()

    async def log_in(self, slot: Slot, name: str, password: str) -> str | None:
        """Check a password.

        Args:
            slot: of the browser's connection.
            name: of the user.
            password: of the user.

        Returns:
            The key of the new session; None: name or password are wrong.

        Raises:
            TimeoutError: too many others try to log in.
        """
        user = await self._find(slot.address, name, password)
        if user is None:
            await asyncio.sleep(slot.login_failed())
            return None
        key = secrets.token_urlsafe(32)
        self._logins[_digest(key)] = UserSession(user, time.monotonic() + limits.SESSION_S)
        if len(self._logins) > limits.MAX_SESSIONS:
            self._logins.popitem(last=False)[1].end()
        return key

    def find(self, key: str) -> UserSession | None:
        """The login of a key; None: there is none."""
        login = self._logins.get(_digest(key))
        if login is not None and not login.is_valid:
            del self._logins[_digest(key)]
            return None
        return login

    def log_out(self, key: str) -> None:
        """End a session, with all its pages."""
        login = self._logins.pop(_digest(key), None)
        if login is not None:
            login.end()

    async def async_close(self) -> None:
        """End."""
        await self._checks.async_close()

    async def _find(self, address: str, name: str, password: str) -> User | None:
        user, known = self._users.get(name, (None, ()))
        random = tokens.sha256(password)
        valid = [i.hash for i in known if not i.is_expired]
        for expected in valid:
            if expected.salt is None and tokens.same(random, expected.digest):
                return user
        if not self._has_chosen:
            return None
        chosen = [i for i in valid if i.salt is not None]
        found = await self._checks.find(address, name, password, chosen or _NOBODY)
        return user if chosen and found is not None else None


def _digest(key: str) -> bytes:
    """What sessions are found by: the time that takes says nothing of the keys."""
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()
