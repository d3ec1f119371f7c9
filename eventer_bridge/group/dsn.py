"""Where the PostgreSQL of a group is; knows nothing of its driver."""

import re
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
from typing_extensions import override

from eventer_bridge.errors import ConfigurationError
from eventer_bridge.group import limits
from eventer_bridge.resources import read_regular

_FILES: Final = ("sslrootcert", "sslcert", "sslkey", "sslcrl", "passfile")
_SCHEMES: Final = ("postgresql", "postgres")
_HOST: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:\[\]/?#]+)(:[0-9]{1,5})?")


def require_driver() -> None:
    """``ConfigurationError``: the extra is not installed."""
    try:
        import asyncpg  # noqa: F401, PLC0415
    except ImportError as e:
        text = "needs the extra `group` (pip install 'mariner-gateway[group]')"
        raise ConfigurationError(f"event_core.group: {text}") from e


class PostgresqlConfig(msgspec.Struct, frozen=True, tag_field="type", tag="postgresql"):
    """A log in PostgreSQL.

    ``dsn`` is a URI as libpq has them, with one host or several. The password in
    ``password_file`` is read for each connection, so that it can be replaced.
    """

    dsn: str
    password_file: Path | None = None

    @override
    def __repr__(self) -> str:
        return f"PostgresqlConfig({self.place}, password_file={self.password_file})"

    @property
    def place(self) -> str:
        """Hosts, ports and database, as ``db1:5432,db2:5432/mariner``; nothing secret."""
        return f"{self._hosts}/{self._database}"

    @property
    def has_password(self) -> bool:
        """Whether the URI has the password itself."""
        parts = urlsplit(self.dsn)
        return parts.password is not None or "password" in dict(parse_qsl(parts.query))

    @property
    def user(self) -> str | None:
        """The role that the URI names."""
        name = urlsplit(self.dsn).username
        return None if name is None else unquote(name)

    def servers(self) -> dict[str, str]:
        """For the place of each host, the URI that leads to it alone."""
        parts = urlsplit(self.dsn)
        user = "".join(parts.netloc.rpartition("@")[:2])
        return {
            f"{host}/{self._database}": parts._replace(netloc=user + host).geturl()
            for host in self._hosts.split(",")
        }

    def files(self) -> dict[str, Path]:
        """Files that the URI names, by parameter."""
        found = dict(parse_qsl(urlsplit(self.dsn).query))
        return {name: Path(found[name]) for name in _FILES if name in found}

    def password(self) -> str | None:
        """What ``password_file`` has, without the end of its line. Any thread; blocks.

        ``ConfigurationError``: it cannot be used.
        """
        if self.password_file is None:
            return None
        place = self.password_file
        try:
            text = read_regular(self.password_file, limits.MAX_PASSWORD_BYTES).decode()
        except OSError as e:
            raise ConfigurationError(f"{place}: {e.strerror}") from e
        except UnicodeDecodeError:
            raise ConfigurationError(f"{place}: not UTF-8 text") from None
        password = text.rstrip("\r\n")
        if not password or not password.isprintable():
            raise ConfigurationError(f"{place}: expected a password in one line")
        return password

    def problem(self) -> str | None:
        """What is wrong with the URI, without anything that may be a password."""
        expected = "expected a URI, as postgresql://mariner@db1,db2/mariner"
        try:
            parts = urlsplit(self.dsn)
            parse_qsl(parts.query, strict_parsing=bool(parts.query))
        except ValueError:
            return expected
        if parts.scheme not in _SCHEMES or not self._hosts or not self._database:
            return expected
        if parts.netloc.count("@") > 1 or "@" in parts.path or parts.fragment:
            return "expected @, / and # in a password to be written as %40, %2F and %23"
        if not all(map(_HOST.fullmatch, self._hosts.split(","))):
            return "expected each host as host or host:port"
        return None

    @property
    def _hosts(self) -> str:
        return urlsplit(self.dsn).netloc.rpartition("@")[2]

    @property
    def _database(self) -> str:
        return unquote(urlsplit(self.dsn).path.lstrip("/"))
