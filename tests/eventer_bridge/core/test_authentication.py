"""Who is let in, by names, tokens and certificates; and what a guesser learns."""

import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Final

import pytest

from eventer_bridge.core import tokens
from eventer_bridge.core.authentication import (
    Admitted,
    Authenticator,
    DeclinedError,
    Login,
    OneForAll,
)
from eventer_bridge.core.payload_schemas import PayloadSchemas
from eventer_bridge.core.quotas import ClientQuota
from eventer_bridge.core.rights import ClientConfig
from eventer_bridge.core.tokens import ScryptChecks, TokenConfig, TokenHash, TokenSource

OVER: Final = "2020-01-01"

CLIENTS = (
    ClientConfig("with token", "secret", (("a",),), ()),
    ClientConfig("with empty token", "", (), ()),
    ClientConfig("without token", None, (), ()),
    ClientConfig("with certificate", None, (), (), certificate="gui"),
    ClientConfig("with both", "secret", (), (), certificate="gui"),
)


@pytest.mark.parametrize(
    ("name", "token", "certificate", "is_known"),
    [
        ("with token", "secret", None, True),
        ("with token", "secret", "another's", True),  # none is asked for
        ("with token", "Secret", None, False),
        ("with token", "secre", None, False),
        ("with token", "", None, False),
        ("with token", None, None, False),
        ("with empty token", "", None, True),
        ("with empty token", None, None, False),
        ("without token", None, None, True),
        ("without token", "", None, False),
        ("without token", "secret", None, False),
        ("with certificate", None, "gui", True),
        ("with certificate", None, None, False),
        ("with certificate", None, "GUI", False),
        ("with certificate", "secret", "gui", False),
        ("with both", "secret", "gui", True),
        ("with both", "secret", None, False),
        ("with both", None, "gui", False),
        ("nobody", None, None, False),
        ("nobody", "", None, False),
        ("nobody", "secret", "gui", False),
    ],
)
def test_who_is_let_in(
    name: str, token: str | None, certificate: str | None, is_known: bool
) -> None:
    authenticator = Authenticator(CLIENTS, PayloadSchemas())
    names = frozenset(() if certificate is None else [f"CN:{certificate}"])
    if not is_known:
        # all alike: who guesses does not learn what was wrong
        with pytest.raises(DeclinedError, match=r"^invalid client name or token$"):
            authenticator.authenticate(Login(name, token, names))
        return
    admitted = authenticator.authenticate(Login(name, token, names))
    assert isinstance(admitted, Admitted)
    assert (admitted.rights.name, admitted.name) == (name, name)
    assert admitted.rights.subscription.matches(("a",)) is (name == "with token")


@pytest.fixture
async def checks() -> AsyncIterator[ScryptChecks]:
    checks = ScryptChecks()
    yield checks
    await checks.async_close()


def client(name: str, token: TokenConfig, certificate: str | None = None) -> ClientConfig:
    return ClientConfig(name, token, (), (), certificate=certificate)


async def cause(authenticator: Authenticator, login: Login) -> str | None:
    """Why it is declined, as the log says; None: it is let in."""
    try:
        admitted = authenticator.authenticate(login)
        if isinstance(admitted, Awaitable):
            await admitted
    except DeclinedError as e:
        return e.cause if str(e) == "invalid client name or token" else str(e)
    return None


async def test_two_tokens_are_valid_at_a_time_until_they_expire() -> None:
    several = (TokenSource("old", expires=OVER), TokenSource(tokens.sha256_text("new")))
    authenticator = Authenticator([client("a", several), client("b", ("1", "2"))], PayloadSchemas())
    for name, token, expected in (
        ("a", "old", "expired token"),
        ("a", "new", None),
        ("a", "1", "wrong token"),
        ("a", None, "wrong token"),
        ("b", "1", None),
        ("b", "2", None),
        ("c", "2", "unknown name"),
    ):
        assert await cause(authenticator, Login(name, token)) == expected


async def test_chosen_tokens(checks: ScryptChecks) -> None:
    of_a = (tokens.scrypt_text("one"), TokenSource(tokens.scrypt_text("old"), expires=OVER))
    both = (tokens.scrypt_text("chosen"), tokens.sha256_text("random"))
    clients = [client("a", of_a), client("b", both), client("c", "c", certificate="c")]
    authenticator = Authenticator(clients, PayloadSchemas(), checks)
    for name, token, expected in (
        ("a", "one", None),
        ("a", "old", "expired token"),
        ("a", "two", "wrong token"),
        ("b", "chosen", None),
        ("b", "random", None),
        ("b", "one", "wrong token"),
        ("c", "c", "wrong certificate"),
        ("d", "one", "unknown name"),
    ):
        assert await cause(authenticator, Login(name, token)) == expected, (name, token)


async def test_a_certificate_alone() -> None:
    clients = [
        client("meter", None, "DNS:Meter.example"),
        client("robot", None, "URI:spiffe://example/robot"),
        client("first", None, "shared"),
        client("second", None, "CN:shared"),
        client("careful", "token", "careful"),
    ]
    authenticator = Authenticator(clients, PayloadSchemas())
    for name, token, names, found in (
        ("meter", None, {"DNS:meter.example", "CN:x"}, "meter"),
        ("whoever", None, {"DNS:meter.example", "CN:x"}, "meter"),
        ("", None, {"URI:spiffe://example/robot"}, "robot"),
        ("whoever", None, {"CN:meter.example"}, None),
        ("robot", None, {"DNS:meter.example"}, None),  # another's name
        ("whoever", "token", {"DNS:meter.example"}, None),
        ("first", None, {"CN:shared"}, "first"),
        ("whoever", None, {"CN:shared"}, None),  # whose would it be?
        ("whoever", None, {"DNS:meter.example", "URI:spiffe://example/robot"}, None),
        ("whoever", None, {"CN:careful"}, None),
        ("whoever", "token", {"CN:careful"}, "careful"),
        ("whoever", None, set[str](), None),
    ):
        login = Login(name, token, frozenset(names))
        if found is None:
            assert await cause(authenticator, login) is not None
        else:
            admitted = authenticator.authenticate(login)
            assert isinstance(admitted, Admitted)
            assert (admitted.name, admitted.rights.name) == (found, found)


async def test_a_guesser_makes_as_many_comparisons_whatever_is_wrong(
    monkeypatch: pytest.MonkeyPatch, checks: ScryptChecks
) -> None:
    compared: list[bytes] = []
    hashed: list[bytes] = []
    same = tokens.same

    def noted(given: bytes, expected: bytes) -> bool:
        compared.append(expected)
        return same(given, expected)

    def scrypt(token: str, salt: bytes) -> bytes:
        hashed.append(salt)
        return bytes(32)

    clients = [
        client("none", None),
        client("one", "1"),
        client("two", ("1", TokenSource("2", expires=OVER))),
        client("certified", "1", certificate="certified"),
    ]
    with_chosen = [*clients, client("chosen", tokens.scrypt_text("x"))]
    monkeypatch.setattr(tokens, "same", noted)
    monkeypatch.setattr(tokens, "scrypt", scrypt)
    for configured, n_hashed in ((clients, 0), (with_chosen, 1)):
        authenticator = Authenticator(configured, PayloadSchemas(), checks)
        for name, token in (
            ("nobody", "1"),
            ("none", "1"),
            ("one", "2"),
            ("two", "2"),  # expired
            ("two", "3"),
            ("certified", "1"),  # without the certificate
            ("chosen", "y"),
        ):
            compared.clear()
            hashed.clear()
            assert await cause(authenticator, Login(name, token)) is not None
            assert (len(compared), len(hashed)) == (2 + n_hashed, n_hashed)


def times_us(authenticator: Authenticator, logins: Sequence[Login]) -> list[float]:
    """Medians of the times in which logins are declined, taken in turns."""
    taken: list[list[float]] = [[] for _ in logins]
    for _ in range(3000):
        for login, of_login in zip(logins, taken, strict=True):
            began = time.perf_counter()
            with pytest.raises(DeclinedError):
                authenticator.authenticate(login)
            of_login.append(time.perf_counter() - began)
    return [statistics.median(i) * 1e6 for i in taken]


def test_a_guesser_learns_nothing_from_the_time() -> None:
    authenticator = Authenticator(
        [client("app", ("secret", TokenSource("old", expires=OVER)))], PayloadSchemas()
    )
    logins = [Login("nobody", "secre1"), Login("app", "secre1"), Login("app", "old")]
    took_us = times_us(authenticator, logins)
    # one hash is 0.5 us, an answer over a network varies by 100 us
    assert max(took_us) - min(took_us) < 5, took_us


def test_who_made_up_a_name_shares_the_rights_of_all() -> None:
    authenticator = OneForAll(("old", tokens.sha256_text("new")), ClientQuota(max_event_types=7))
    admitted = authenticator.authenticate(Login("gui/1", "new"))
    assert isinstance(admitted, Admitted)
    assert (admitted.name, admitted.rights.name) == ("gui/1", "Eventer clients")
    assert admitted.rights.type_quota.max_types == 7
    assert authenticator.readmit("gui/1", admitted.proof, None) is admitted.rights
    with pytest.raises(DeclinedError, match=r"^invalid client token$"):
        authenticator.authenticate(Login("gui/1", "wrong"))


# --- when the configuration has changed -----------------------------------------------------


def proof(token: str) -> TokenHash:
    return TokenHash(tokens.sha256(token))


@pytest.mark.parametrize(
    ("configured", "kept", "cause_"),
    [
        (client("a", "t"), proof("t"), None),
        (client("a", ("u", tokens.sha256_text("t"))), proof("t"), None),
        (client("a", TokenSource("t", expires=OVER)), proof("t"), None),  # let in before
        (client("a", None), None, None),
        (client("a", None, "DNS:x"), None, "its certificate"),
        (client("b", "t"), proof("t"), "the client"),
        (client("a", "u"), proof("t"), "its token"),
        (client("a", None), proof("t"), "its token"),
        (client("a", "t"), None, "its token"),
        (client("a", "t", "y"), proof("t"), "its certificate"),
    ],
)
def test_readmission(configured: ClientConfig, kept: TokenHash | None, cause_: str | None) -> None:
    authenticator = Authenticator([configured], PayloadSchemas())
    if cause_ is None:
        assert authenticator.readmit("a", kept, None).name == "a"
        return
    with pytest.raises(DeclinedError) as caught:
        authenticator.readmit("a", kept, None)
    assert caught.value.cause == cause_
