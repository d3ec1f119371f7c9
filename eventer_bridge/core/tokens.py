"""Tokens of clients: how they are configured, kept and compared.

A token is configured as one of these texts:

* ``sha256:HEX``, the hash of a random token (``mariner token new``). Nobody guesses 256 bits, so
  that a fast hash suffices;
* ``scrypt:SALT:HASH``, the hash of a chosen token (``mariner token hash``), which is slow to
  compute, and so slow to guess (:class:`ScryptChecks`);
* anything else: the token itself. Only its hash is kept.

A :class:`TokenSource` says where the text is (in the configuration, a file or the environment), and
until when it is valid. A client has up to ``limits.MAX_TOKENS``, so that one can replace another.

No token is part of an error, a log record or a representation.
"""

import asyncio
import contextlib
import hashlib
import hmac
import os
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
from typing_extensions import override

from eventer_bridge import limits, moments
from eventer_bridge.errors import ConfigurationError, InvalidEventError
from eventer_bridge.model import Timestamp
from eventer_bridge.resources import in_time, read_regular
from eventer_bridge.slices import FairLine

_RANDOM_BYTES: Final = 32
_SALT_BYTES: Final = 16
_EXPECTED: Final = "expected a token in one line"
_UNSEEN: Final = {
    " ": "a blank",
    "\t": "a tab",
    "\n": "a line break",
    "\r": "a carriage return",
    "\xa0": "a no-break space",
    "\ufeff": "a byte order mark",
}
_SHA256: Final = re.compile(r"sha256:([0-9a-f]{64})")
_SCRYPT: Final = re.compile(r"scrypt:([0-9a-f]{32}):([0-9a-f]{64})")


class TokenSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a token is: in ``value``, a ``file`` or a variable of the ``environment``.

    ``expires`` is the last moment of its validity (``moments.parse_last``); None: it stays valid.
    """

    value: str | None = None
    file: Path | None = None
    environment: str | None = None
    expires: str | None = None

    @override
    def __repr__(self) -> str:
        return without_token(self, "value")


TokenConfig: TypeAlias = str | TokenSource | tuple[str | TokenSource, ...] | None
"""Tokens of a client; a text is a :class:`TokenSource` with that ``value``. None: no token."""


class TokenHash(NamedTuple):
    """What is kept of a token; equal for equal ones, however they are configured.

    A chosen token has a salt; then ``digest`` is of scrypt, otherwise of SHA-256.
    """

    digest: bytes
    salt: bytes | None = None

    @override
    def __repr__(self) -> str:
        return "TokenHash(***)"


class Token(NamedTuple):
    """A token that a client may present: what it is compared with, and its last moment.

    ``is_plain``: the text of its source is the token itself.
    """

    hash: TokenHash
    expires: Timestamp | None
    is_plain: bool

    @property
    def is_expired(self) -> bool:
        """Whether its last moment is over."""
        return self.expires is not None and Timestamp.now() > self.expires


def new() -> str:
    """A random token."""
    return secrets.token_urlsafe(_RANDOM_BYTES)


def sha256_text(token: str) -> str:
    """``sha256:…`` of a random token."""
    return f"sha256:{sha256(token).hex()}"


def scrypt_text(token: str) -> str:
    """``scrypt:…`` of a chosen token; takes about 0.2 s."""
    salt = secrets.token_bytes(_SALT_BYTES)
    return f"scrypt:{salt.hex()}:{scrypt(token, salt).hex()}"


def sha256(token: str) -> bytes:
    """SHA-256 of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def scrypt(token: str, salt: bytes) -> bytes:
    """Scrypt of a token, see ``limits.SCRYPT_COST``; any thread, without the GIL."""
    return hashlib.scrypt(
        token.encode("utf-8", "surrogatepass"),
        salt=salt,
        n=limits.SCRYPT_COST,
        r=limits.SCRYPT_BLOCKS,
        p=limits.SCRYPT_ROUNDS,
        dklen=32,
    )


def same(given: bytes, expected: bytes) -> bool:
    """Compare hashes, in a time that says nothing of them."""
    return hmac.compare_digest(given, expected)


def sources(config: TokenConfig) -> tuple[TokenSource, ...]:
    """The sources of a configuration's tokens."""
    if config is None:
        return ()
    several = config if isinstance(config, tuple) else (config,)
    return tuple(i if isinstance(i, TokenSource) else TokenSource(i) for i in several)


def read(config: TokenConfig, key: str) -> tuple[Token, ...]:
    """The tokens that a client may present; empty: it must present none.

    ``key`` is where they are configured, for ``ConfigurationError``: one is missing or malformed.
    """
    return tuple(parse(_text(i, key), i.expires, key) for i in sources(config))


def read_own(config: TokenConfig, key: str) -> str | None:
    """The token that we present to others, of several the first; see :func:`read`."""
    if config is None:
        return None
    text = _text(sources(config)[0], key)
    if _SHA256.fullmatch(text) or _SCRYPT.fullmatch(text):
        raise ConfigurationError(f"{key}: ***: expected the token itself, not its hash: it is sent")
    return text


def digest_of_own(config: TokenConfig) -> bytes | None:
    """What tells whether the token that we present has changed; raises as :func:`read_own`."""
    token = read_own(config, "token")
    return None if token is None else sha256(token)


def without_token(value: msgspec.Struct, hidden: str) -> str:
    """Representation of a structure with ``***`` for one of its fields."""
    fields = ", ".join(f"{name}={shown}" for name, shown in _fields(value, hidden))
    return f"{type(value).__name__}({fields})"


def _fields(value: msgspec.Struct, hidden: str) -> Iterator[tuple[str, str]]:
    for name in value.__struct_fields__:
        field: Any = getattr(value, name)
        yield name, "***" if name == hidden and field is not None else repr(field)


def parse(text: str, expires: str | None, key: str) -> Token:
    """A token from the text of its source; see :func:`read`."""
    moment = None
    if expires is not None:
        try:
            moment = moments.parse_last(expires)
        except InvalidEventError:
            raise ConfigurationError(f"{key}.expires: ***: {moments.EXPECTED}") from None
    if found := _SHA256.fullmatch(text):
        return Token(TokenHash(bytes.fromhex(found[1])), moment, is_plain=False)
    if found := _SCRYPT.fullmatch(text):
        salt, digest = map(bytes.fromhex, found.groups())
        return Token(TokenHash(digest, salt), moment, is_plain=False)
    if text.startswith(("sha256:", "scrypt:")):
        raise ConfigurationError(f"{key}: ***: expected a hash of `mariner token hash`")
    return Token(TokenHash(sha256(text)), moment, is_plain=True)


def _text(source: TokenSource, key: str) -> str:
    if source.value is not None:
        return source.value
    if source.file is not None:
        return read_file(source.file, f"{key}.file: {source.file}")
    place = f"{key}.environment: {source.environment}"
    found = os.environ.get(source.environment or "")
    if found is None:
        raise ConfigurationError(f"{place}: not set")
    return without_end(found, place)


def read_file(path: Path, place: str) -> str:
    """The token in a file; it is not part of what is raised (:func:`read`). Any thread; blocks."""
    try:
        data = read_regular(path, limits.MAX_TOKEN_FILE_BYTES)
    except OSError as e:
        raise ConfigurationError(f"{place}: {e.strerror}") from e
    return of_bytes(data, place)


def of_bytes(data: bytes, place: str) -> str:
    """The token in a file or an input, see :func:`without_end`; a byte order mark is ignored."""
    if len(data) > limits.MAX_TOKEN_FILE_BYTES:
        raise ConfigurationError(f"{place}: has more than {limits.MAX_TOKEN_FILE_BYTES} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigurationError(f"{place}: not UTF-8 text, {_EXPECTED}") from None
    return without_end(text, place)


def without_end(text: str, place: str) -> str:
    """A token without the ends of lines behind it.

    What nobody sees is refused, as the token would just be wrong: blanks around it, and characters
    that are not printed (``ConfigurationError`` with ``place`` and the character).
    """
    token = text.rstrip("\r\n")
    if not token:
        raise ConfigurationError(f"{place}: empty, {_EXPECTED}")
    ends = ("begins with", token[0]), ("ends with", token[-1])
    for where, part in (*ends, ("has", token.replace(" ", "_"))):
        for i in part:
            if not i.isprintable() or i == " ":
                raise ConfigurationError(f"{place}: {where} {_name_of(i)}, {_EXPECTED}")
    return token


def _name_of(character: str) -> str:
    code = f"U+{ord(character):04X}"
    name = _UNSEEN.get(character)
    return code if name is None else f"{name} ({code})"


_NO_FAILURE: Final = 0
_TURNS: Final = (_NO_FAILURE, 1, _NO_FAILURE, 2)
"""Lines, in the order of their turns; that of no failure is the first."""

_UNKNOWN: Final = -1
"""No index of a hash."""


class _Check(NamedTuple):
    key: bytes  # what its outcome is remembered by
    address: str
    name: str
    token: str
    expected: Sequence[TokenHash]
    answer: "asyncio.Future[int | None]"


class ScryptChecks:
    """Checks of chosen tokens: 0.2 s of a processor each, at a guesser's request.

    A thread computes them one after the other, without the GIL. Outcomes are remembered, right or
    wrong, so that a client that comes again with the same token costs nothing. What is remembered
    is a digest with a key of this process, not the token; :meth:`forget` forgets it.

    Checks wait in three lines: that of addresses without failures; that of names without failures
    at addresses with some, as where many clients have one address; and the rest. A name whose check
    timed out comes into a later line the next time. The lines take turns, every other turn is the
    first one's. In each line addresses take turns, and the newest check comes first: where more
    come than can be computed in time, older ones would time out anyway. So neither many guessing
    addresses nor neighbours with an old token keep a right one out.

    After a check that failed, the other two lines rest for as long as it took: who guesses again
    gets half of one processor, all guessers together.

    A check ends when its client leaves. The slots of new connections bound the checks that wait.
    Belongs to the event loop's thread; to be closed after use.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "scrypt")  # starts with the first check
        self._key = secrets.token_bytes(hashlib.blake2b.MAX_KEY_SIZE)
        self._right: OrderedDict[bytes, int | None] = OrderedDict()
        self._wrong: OrderedDict[bytes, int | None] = OrderedDict()
        # addresses where a check failed, and names there, or of which one timed out
        self._failed: OrderedDict[bytes, int | None] = OrderedDict()
        self._lines: list[FairLine[_Check]] = [FairLine(), FairLine(), FairLine()]
        self._turns = cycle(_TURNS)
        self._rests_until_s = 0.0  # all lines but the first
        self._has_come = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return sum(map(len, self._lines))

    def forget(self) -> None:
        """Forget what was computed: other tokens are configured."""
        self._right.clear()
        self._wrong.clear()

    async def find(
        self, address: str, name: str, token: str, expected: Sequence[TokenHash]
    ) -> int | None:
        """Index of the hash that a token has, or None; ``TimeoutError``: too many came first.

        ``address`` is as in ``Slot.address``. What is remembered is of the client's ``name``, so
        that the time says nothing of others. ``expected`` have salts; all of them are computed.
        """
        key = self._digest(name, token, *(part for i in expected for part in (i.digest, i.salt)))
        if (found := self._recall(key)) != _UNKNOWN:
            return found
        answer = asyncio.get_running_loop().create_future()
        check = _Check(key, address, name, token, expected, answer)
        self._line_of(check).append(address, check)
        self._has_come.set()
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        try:
            async with asyncio.timeout(limits.SCRYPT_TIMEOUT_S):
                return await check.answer
        except TimeoutError:
            _remember(self._failed, self._marks(check)[1], None)
            raise
        finally:
            self._leave(check)

    async def async_close(self) -> None:
        """End; checks under way end without an answer."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while len(self):
                self._has_come.clear()
                check = self._next()
                if check is None:
                    await in_time(self._has_come.wait(), self._rests_until_s - time.monotonic())
                    continue
                found = self._recall(check.key)  # of another connection
                if found == _UNKNOWN:
                    try:
                        found, worked_s = await loop.run_in_executor(
                            self._thread, _find, check.token, check.expected
                        )
                    except Exception as e:  # the others are to go on
                        if not check.answer.done():
                            check.answer.set_exception(e)
                        continue
                    self._note(check, found)
                    if found is None:
                        self._rests_until_s = time.monotonic() + worked_s
                if not check.answer.done():
                    check.answer.set_result(found)
        finally:
            self._running = None

    def _next(self) -> _Check | None:
        """The one whose turn it is; None: all that wait are to rest."""
        is_resting = time.monotonic() < self._rests_until_s
        for _ in _TURNS:
            number = next(self._turns)
            line = self._lines[number]
            if line.clients and (number == _NO_FAILURE or not is_resting):
                newest = next(reversed(line.clients)) if number == _NO_FAILURE else None
                return line.pop(newest, is_newest=True)
        return None

    def _marks(self, check: _Check) -> tuple[bytes, bytes]:
        """What is noted of a check that failed."""
        return self._digest(check.address), self._digest(check.address, check.name)

    def _line_of(self, check: _Check) -> FairLine[_Check]:
        return self._lines[sum(mark in self._failed for mark in self._marks(check))]

    def _recall(self, key: bytes) -> int | None:
        """What was found before, or :data:`_UNKNOWN`."""
        for known in self._right, self._wrong:
            if key in known:
                known.move_to_end(key)
                return known[key]
        return _UNKNOWN

    def _note(self, check: _Check, found: int | None) -> None:
        if found is not None:
            _remember(self._right, check.key, found)
            for mark in self._marks(check):
                self._failed.pop(mark, None)
            return
        _remember(self._wrong, check.key, None)
        for mark in self._marks(check):
            _remember(self._failed, mark, None)
        for line in self._lines[:2]:  # what else comes from there waits elsewhere now
            for other in [*line.clients.get(check.address, ())]:
                line.remove(check.address, other)
                self._line_of(other).append(check.address, other)

    def _leave(self, check: _Check) -> None:
        for line in self._lines:
            with contextlib.suppress(KeyError, ValueError):  # it waits in another one, or in none
                line.remove(check.address, check)

    def _digest(self, *parts: str | bytes | None) -> bytes:
        digest = hashlib.blake2b(key=self._key, digest_size=16)
        for part in parts:
            data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part or b""
            digest.update(len(data).to_bytes(8) + data)
        return digest.digest()


def _remember(known: OrderedDict[bytes, int | None], key: bytes, value: int | None) -> None:
    """Note something last, and forget the first if there is too much."""
    known[key] = value
    known.move_to_end(key)
    if len(known) > limits.MAX_KNOWN_CHECKS:
        known.popitem(last=False)


def _find(token: str, expected: Sequence[TokenHash]) -> tuple[int | None, float]:
    """The index of the hash that a token has, and the seconds that took."""
    began_s = time.perf_counter()
    found = None
    for index, known in enumerate(expected):
        if same(scrypt(token, known.salt or b""), known.digest):
            found = index
    return found, time.perf_counter() - began_s
