"""Configuration of the console: a YAML, TOML or JSON file."""

import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from eventer_bridge import limits as core_limits
from eventer_bridge import tls
from eventer_bridge.core import tokens
from eventer_bridge.core.tokens import Token, TokenConfig, TokenSource, without_token
from eventer_bridge.errors import ConfigurationError, InvalidSubscriptionError
from eventer_bridge.model import EventType
from eventer_bridge.subscription import Subscription
from mariner.gateway.config import ClientTlsConfig
from mariner.gateway.config_file import decode, to_path


class PageTls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Certificate and key of the page."""

    cert: Path
    key: Path


class PageAddress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the page is served; without ``tls``, on loopback only."""

    host: str = "127.0.0.1"
    port: int = 23081
    tls: PageTls | None = None


class User(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Someone who may log in; ``password`` is a hash, as of a token."""

    name: Annotated[str, msgspec.Meta(max_length=core_limits.MAX_NAME_CHARACTERS)]
    password: TokenConfig
    may_register: bool = False

    def __repr__(self) -> str:
        return without_token(self, "password")


class GatewayTls(ClientTlsConfig, frozen=True, forbid_unknown_fields=True):
    """TLS to a gateway; without ``ca``, those of this system verify it."""


class WatchedGateway(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A gateway, and the client that the console is to it; ``name`` is on the page.

    Without ``metrics``, the URL of its ``/metrics``, there are no rates, and without ``control``,
    its control socket on this machine, single clients are not known. ``alarms`` are the types
    of the alarms of its module ``threshold``.
    """

    name: str
    host: str
    client: str
    port: int = 23014
    token: str | TokenSource | None = None
    tls: GatewayTls | None = None
    metrics: str | None = None
    control: Path | None = None
    alarms: tuple[EventType, ...] = (("alarm", "*"),)

    def __repr__(self) -> str:
        return without_token(self, "token")


class ConsoleConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is configured."""

    users: tuple[User, ...]
    gateways: tuple[WatchedGateway, ...]
    listen: PageAddress = PageAddress()


def load(path: Path) -> ConsoleConfig:
    """Read a configuration file, and check it and the files that it names.

    Raises ConfigurationError with a line for each thing that is wrong.
    """
    try:
        config = msgspec.convert(decode(path), ConsoleConfig, dec_hook=to_path)
    except msgspec.ValidationError as e:
        raise ConfigurationError(f"{path}: {e}") from e
    problems = [*_problems(config)]
    if problems:
        raise ConfigurationError("\n".join(f"{path}: {i}" for i in problems))
    return config


def passwords(user: User, key: str) -> tuple[Token, ...]:
    """The hashes of a user's passwords; raises ConfigurationError if there is none, or no hash."""
    found = tokens.read(user.password, key)
    if not found or any(i.is_plain for i in found):
        raise ConfigurationError(f"{key}: ***: expected the hash that `mariner token hash` prints")
    return found


def _problems(config: ConsoleConfig) -> Iterator[str]:
    if config.listen.tls is None and not _is_loopback(config.listen.host):
        yield (
            f"listen.host: {config.listen.host!r}: expected a loopback address, as there is no"
            " listen.tls: passwords would be sent in the clear"
        )
    if not 0 <= config.listen.port <= 65535:
        yield f"listen.port: {config.listen.port}: expected 0 to 65535"
    for key, several in (("users", config.users), ("gateways", config.gateways)):
        if not several:
            yield f"{key}: expected at least one"
        names = [i.name for i in several]
        for index, name in enumerate(names):
            if not name or name in names[:index]:
                yield f"{key}[{index}].name: {name!r}: expected a name that no other one has"
    yield from _wrong_files(config)
    for index, gateway in enumerate(config.gateways):
        yield from _gateway_problems(f"gateways[{index}]", gateway)


def _wrong_files(config: ConsoleConfig) -> Iterator[str]:
    try:
        if config.listen.tls is not None:
            tls.server_context(config.listen.tls.cert, config.listen.tls.key)
    except ConfigurationError as e:
        yield f"listen.tls: {e}"
    for index, user in enumerate(config.users):
        try:
            passwords(user, f"users[{index}].password")
        except ConfigurationError as e:
            yield str(e)


def _gateway_problems(key: str, gateway: WatchedGateway) -> Iterator[str]:
    if not 1 <= gateway.port <= 65535:
        yield f"{key}.port: {gateway.port}: expected 1 to 65535"
    if gateway.metrics is not None:
        url = urlsplit(gateway.metrics)
        if url.scheme not in {"http", "https"} or not url.hostname:
            yield f"{key}.metrics: {gateway.metrics!r}: expected a URL, as http://HOST:23080/metrics"
    try:
        tokens.read_own(gateway.token, f"{key}.token")
        if gateway.tls is not None:
            tls.client_context(gateway.tls.ca, gateway.tls.cert, gateway.tls.key)
        Subscription(gateway.alarms)
    except InvalidSubscriptionError as e:
        yield f"{key}.alarms: {e}"
    except ConfigurationError as e:
        yield str(e) if str(e).startswith(key) else f"{key}.tls: {e}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
