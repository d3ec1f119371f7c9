"""Tokens as they are configured, kept and compared; and that nothing tells them."""

import re
from pathlib import Path
from typing import Any

import pytest

from eventer_bridge import limits
from eventer_bridge.core import tokens
from eventer_bridge.core.rights import ClientConfig
from eventer_bridge.core.tokens import TokenConfig, TokenHash, TokenSource
from eventer_bridge.errors import ConfigurationError
from eventer_bridge.model import Timestamp
from eventer_bridge.remote.monitor import Member
from mariner.gateway.config import EventerServerConfig, RemoteConfig

SECRET = "hunter2"
SHA256 = "sha256:f52fbd32b2b3b86ff88ef6c490628285f482af15ddcb29541f94bcf526a3f6c7"


def test_a_random_token() -> None:
    made = {tokens.new() for _ in range(100)}
    assert len(made) == 100
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{43}", i) for i in made)


def test_equal_tokens_are_kept_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plain").write_text(f"\ufeff{SECRET}\r\n")  # as editors of Windows write it
    (tmp_path / "hash").write_text(f"{SHA256}\n")
    monkeypatch.setenv("TOKEN", SECRET)
    assert tokens.sha256_text(SECRET) == SHA256
    sources: list[tuple[TokenConfig, bool]] = [
        (SECRET, True),
        (SHA256, False),
        (TokenSource(SECRET), True),
        (TokenSource(file=tmp_path / "plain"), True),
        (TokenSource(file=tmp_path / "hash"), False),
        (TokenSource(environment="TOKEN"), True),
    ]
    for source, is_plain in sources:
        [found] = tokens.read(source, "token")
        assert (found.hash, found.is_plain) == (TokenHash(tokens.sha256(SECRET)), is_plain)
        assert not found.is_expired
    assert tokens.read(None, "token") == ()
    assert [i.is_plain for i in tokens.read((SHA256, TokenSource(SECRET)), "t")] == [False, True]


def test_a_chosen_token() -> None:
    text = tokens.scrypt_text(SECRET)
    assert text != tokens.scrypt_text(SECRET)
    [found] = tokens.read(text, "token")
    assert found.hash.salt is not None
    assert tokens.scrypt(SECRET, found.hash.salt) == found.hash.digest
    assert tokens.scrypt("another", found.hash.salt) != found.hash.digest


def test_scrypt_is_what_is_documented() -> None:
    """Hashes of earlier versions stay valid: these numbers are part of the format."""
    assert (limits.SCRYPT_COST, limits.SCRYPT_BLOCKS, limits.SCRYPT_ROUNDS) == (1 << 14, 8, 5)


def test_expiry(monkeypatch: pytest.MonkeyPatch) -> None:
    def at(now: str, expires: str) -> bool:
        moment = tokens.parse("", now, "t").expires
        assert moment is not None
        monkeypatch.setattr(Timestamp, "now", lambda: moment)
        return tokens.parse(SECRET, expires, "token").is_expired

    assert not at("2026-12-31T23:59:59Z", "2026-12-31")
    assert at("2027-01-01T00:00:00Z", "2026-12-31")
    assert not at("2026-12-31T12:00:00Z", "2026-12-31T12:00:00Z")
    assert at("2026-12-31T12:00:01Z", "2026-12-31T13:00:00+01:00")


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (TokenSource(file=Path("none")), "t.file: {0}/none: No such file or directory"),
        (TokenSource(file=Path("empty")), "t.file: {0}/empty: empty"),
        (TokenSource(file=Path("two")), "t.file: {0}/two: has a line break (U+000A)"),
        (TokenSource(file=Path("bytes")), "t.file: {0}/bytes: not UTF-8 text"),
        (TokenSource(file=Path("before")), "t.file: {0}/before: begins with a blank (U+0020)"),
        (TokenSource(file=Path("after")), "t.file: {0}/after: ends with a blank (U+0020)"),
        (TokenSource(file=Path("blank")), "t.file: {0}/blank: begins with a blank (U+0020)"),
        (TokenSource(file=Path("tab")), "t.file: {0}/tab: ends with a tab (U+0009)"),
        (TokenSource(file=Path("mark")), "t.file: {0}/mark: has a byte order mark (U+FEFF)"),
        (TokenSource(file=Path("strange")), "t.file: {0}/strange: begins with U+200B, expected"),
        (TokenSource(file=Path("long")), "t.file: {0}/long: has 9600 bytes, at most 4096 are read"),
        (TokenSource(file=Path("/dev/zero")), "t.file: /dev/zero: is a character device, expected"),
        (TokenSource(environment="NONE"), "t.environment: NONE: not set"),
        (TokenSource(environment="AFTER"), "t.environment: AFTER: ends with a blank (U+0020), exp"),
        (TokenSource(environment="EMPTY"), "t.environment: EMPTY: empty, expected a token"),
        (
            TokenSource("sha256:" + SECRET),
            "t: ***: expected a hash of `mariner token hash`",
        ),
        (
            TokenSource("scrypt:" + SECRET),
            "t: ***: expected a hash of `mariner token hash`",
        ),
        (TokenSource(SECRET, expires="soon"), "t.expires: ***: expected ISO 8601"),
    ],
)
def test_a_source_that_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: TokenSource, error: str
) -> None:
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.setenv("AFTER", f"{SECRET} ")
    contents = {
        "empty": "\n",
        "two": f"{SECRET}\n{SECRET}\n",
        "before": f" {SECRET}",
        "after": f"{SECRET} \r\n",
        "blank": " ",
        "tab": f"{SECRET}\t\n",
        "mark": f"{SECRET}\ufeff{SECRET}",
        "strange": f"\u200b{SECRET}",
        "long": "hunter2." * 1200,
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content.encode())
    (tmp_path / "bytes").write_bytes(b"hunter2\xff")
    if source.file is not None:
        source = TokenSource(file=tmp_path / source.file)
    with pytest.raises(ConfigurationError) as caught:
        tokens.read(source, "t")
    assert str(caught.value).startswith(error.format(tmp_path))
    assert SECRET not in str(caught.value)


def test_blanks_within_are_part_of_a_token() -> None:
    assert tokens.of_bytes(b"\xef\xbb\xbfa good one\r\n\n", "t") == "a good one"


def test_a_token_of_ours_is_no_hash() -> None:
    assert tokens.read_own(None, "t") is None
    assert tokens.read_own((SECRET, "b"), "t") == SECRET
    for text in (SHA256, tokens.scrypt_text(SECRET)):
        with pytest.raises(ConfigurationError, match=r"^t: \*\*\*: expected the token itself, not"):
            tokens.read_own(text, "t")


@pytest.mark.parametrize("token", [SECRET, TokenSource(SECRET), (TokenSource(SECRET), SECRET)])
def test_no_representation_tells_a_token(token: Any) -> None:
    texts = [
        repr(i)
        for i in (
            ClientConfig("app", token, (), ()),
            EventerServerConfig("host", 1, token),
            RemoteConfig("host", 1, token),
            Member("a", "b", None, token),  # type: ignore[arg-type]
            tokens.sources(token),
            tokens.read(token, "t"),
        )
    ]
    for text in texts:
        assert "***" in text
        assert SECRET not in text
        assert tokens.sha256(SECRET).hex() not in text
