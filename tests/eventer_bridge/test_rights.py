"""Who is let in: names, tokens and certificates."""

import pytest

from eventer_bridge.payload_schemas import PayloadSchemas
from eventer_bridge.rights import Authenticator, ClientConfig, DeclinedError

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
    if not is_known:
        # all alike: who guesses does not learn what was wrong
        with pytest.raises(DeclinedError, match=r"^invalid client name or token$"):
            authenticator.authenticate(name, token, certificate)
        return
    rights = authenticator.authenticate(name, token, certificate)
    assert rights.name == name
    assert rights.subscription.matches(("a",)) is (name == "with token")
