"""Authentication: which configured client a peer is, by its name, token and certificate.

A client is known by

* the name that it sends, or, if no client has that name, its certificate alone: the common name, or
  a DNS name or URI of the subject alternative name, that is configured for exactly one client;
* its tokens, if it has any: one of them must be presented. A client without presents none;
* its ``certificate``, if it has one: the name must be in the verified certificate.

Whatever is wrong, the answer is the same, and takes the same time: every login compares as many
hashes, whether the name is known or not. Where a client has a chosen token, every login whose token
fails the fast comparison gets the slow one (``tokens``), of random hashes if need be; not
the same token of the same name again, known or not. Only the log says what was wrong.

A connection can be authenticated again (:meth:`Authenticator.readmit`) when the configuration
changes, by what is kept of its login: the hash of its token. A token that has expired meanwhile
does not end it; one that is no longer configured does.

Runs on the event loop's thread.
"""

import secrets
from collections import Counter
from collections.abc import Awaitable, Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

from cryptography import x509
from typing_extensions import override

from eventer_bridge import limits
from eventer_bridge.core import tokens
from eventer_bridge.core.payload_schemas import PayloadSchemas
from eventer_bridge.core.quotas import ClientQuota
from eventer_bridge.core.rights import ClientConfig, Rights, everything
from eventer_bridge.core.tokens import ScryptChecks, TokenConfig, TokenHash
from eventer_bridge.tls import is_revoked, peer_names

_UNLIMITED: Final = ClientQuota()
_DECLINED: Final = "invalid client name or token"


class DeclinedError(Exception):
    """Authentication failed; the text is for the client, ``cause`` for the log only.

    ``may_pass``: the same client may succeed later.
    """

    def __init__(self, text: str, cause: str | None = None, *, may_pass: bool = False) -> None:
        super().__init__(text)
        self.cause = cause
        self.may_pass = may_pass


class Login:
    """What a client presents; ``certificate``: names of its verified one (``tls.peer_names``)."""

    __slots__ = ("address", "certificate", "name", "token")

    def __init__(
        self,
        name: str,
        token: str | None,
        certificate: frozenset[str] = frozenset(),
        address: str = "",
    ) -> None:
        self.name = name
        self.token = token
        self.certificate = certificate
        self.address = address


class Admitted(NamedTuple):
    """A client that was let in, and what is kept of its token (None: it needed none).

    It is called by the name that it sent, or that of its certificate's client.
    """

    rights: Rights
    name: str
    proof: TokenHash | None


class Authenticator:
    """Authenticates the configured clients; see the module.

    The caller closes the schemas, after all users of the rights. Without ``checks`` of chosen
    tokens, it has its own. TLS checks revocation lists at the handshake; here, they are for
    connections that began before they were replaced. ``ConfigurationError``: no token can be read.
    """

    declined: str = _DECLINED

    def __init__(
        self,
        clients: Iterable[ClientConfig],
        schemas: PayloadSchemas,
        checks: ScryptChecks | None = None,
        revoked: Sequence[x509.CertificateRevocationList] = (),
    ) -> None:
        self._revoked = revoked
        self._set([Rights(client, schemas) for client in clients], checks)

    def _set(self, rights: Sequence[Rights], checks: ScryptChecks | None) -> None:
        self._checks = ScryptChecks() if checks is None else checks
        self._by_name = {i.name: i for i in rights}
        certificates = Counter(i.certificate for i in rights)
        self._by_certificate = {
            i.certificate: i for i in rights if i.certificate and certificates[i.certificate] == 1
        }
        self._n_chosen = max((len(_chosen(i)) for i in rights), default=0)
        # compared with what nobody's token has
        self._nobodys = [
            TokenHash(secrets.token_bytes(32), secrets.token_bytes(16))
            for _ in range(limits.MAX_TOKENS)
        ]

    @property
    def names(self) -> Collection[str]:
        """Names of the clients that it lets in (``Rights.name``)."""
        return self._by_name.keys()

    def authenticate(self, login: Login) -> Admitted | Awaitable[Admitted]:
        """The client that logs in, or ``DeclinedError``; later if chosen tokens are checked."""
        rights = self._named(login.name) or self._certified(login.certificate)
        known = () if rights is None else rights.tokens
        given = b"" if login.token is None else tokens.sha256(login.token)
        found: int | None = None
        for index in range(limits.MAX_TOKENS):
            kept = known[index].hash if index < len(known) else self._nobodys[index]
            if tokens.same(given, kept.digest) and kept.salt is None:
                found = index
        cause = self._problem(rights, login, found)
        if rights is not None and cause is None:
            return self._admitted(rights, login, found)
        if self._n_chosen and login.token is not None:
            return self._authenticate_slowly(login, rights, login.token, cause)
        raise DeclinedError(self.declined, cause)

    async def _authenticate_slowly(
        self, login: Login, rights: Rights | None, token: str, cause: str | None
    ) -> Admitted:
        chosen = [] if rights is None else _chosen(rights)
        expected = [rights.tokens[i].hash for i in chosen] if rights is not None else []
        expected += self._nobodys[: self._n_chosen - len(chosen)]
        try:
            name = login.name if rights is None else rights.name
            index = await self._checks.find(login.address, name, token, expected)
        except TimeoutError:
            text, cause = "too many logins at a time", "its token was not checked"
            raise DeclinedError(text, cause, may_pass=True) from None
        found = chosen[index] if index is not None and index < len(chosen) else None
        if found is not None:
            cause = self._problem(rights, login, found)
        if rights is None or cause is not None:
            raise DeclinedError(self.declined, cause)
        return self._admitted(rights, login, found)

    def names_of(self, ssl_object: Any) -> frozenset[str]:
        """Names of a client's certificate (``tls.peer_names``); ``DeclinedError``: revoked."""
        if self._revoked and is_revoked(ssl_object, self._revoked):
            raise DeclinedError(self.declined, "its certificate is revoked")
        return peer_names(ssl_object)

    def readmit(self, name: str, proof: TokenHash | None, ssl_object: Any) -> Rights:
        """The rights of a client that was let in before the configuration changed.

        Name and proof are of :class:`Admitted`, the ``ssl.SSLObject`` of its connection, or None.
        ``DeclinedError``: it is not to be let in any more; the cause is for the log.
        """
        rights = self._named(name)
        if rights is None:
            raise DeclinedError(self.declined, "the client")
        kept = [token.hash for token in rights.tokens]
        if proof not in kept if kept else proof is not None:
            raise DeclinedError(self.declined, "its token")
        if rights.certificate is not None or self._revoked:
            names = self.names_of(ssl_object)
            if rights.certificate is not None and rights.certificate not in names:
                raise DeclinedError(self.declined, "its certificate")
        return rights

    def _named(self, name: str) -> Rights | None:
        return self._by_name.get(name)

    def _certified(self, certificate: frozenset[str]) -> Rights | None:
        found = [self._by_certificate[i] for i in certificate if i in self._by_certificate]
        return found[0] if len(found) == 1 else None

    def _problem(self, rights: Rights | None, login: Login, found: int | None) -> str | None:
        """The reason for declining; None: there is none."""
        if rights is None:
            return "unknown name"
        if found is None and (rights.tokens or login.token is not None):
            return "wrong token"
        if found is not None and rights.tokens[found].is_expired:
            return "expired token"
        if rights.certificate is not None and rights.certificate not in login.certificate:
            return "wrong certificate"
        return None

    def _admitted(self, rights: Rights, login: Login, found: int | None) -> Admitted:
        return Admitted(rights, rights.name, None if found is None else rights.tokens[found].hash)


class OneForAll(Authenticator):
    """One token for all clients, with all rights; without a token, clients present none.

    Clients choose their names freely, so they share the rights and quota of one client.

    A wrong token and a missing one are declined alike. 001 recommends accepting clients without a
    token in any case; then a token would protect nothing.

    Arguments are as of :class:`Authenticator`: a token, or two, and the quota of all of them.
    """

    declined = "invalid client token"

    def __init__(
        self,
        token: TokenConfig,
        quota: ClientQuota = _UNLIMITED,
        checks: ScryptChecks | None = None,
        revoked: Sequence[x509.CertificateRevocationList] = (),
    ) -> None:
        self._revoked = revoked
        self._rights = everything("Eventer clients", quota, token)
        self._set([self._rights], checks)

    @override
    def _named(self, name: str) -> Rights | None:
        return self._rights

    @override
    def _admitted(self, rights: Rights, login: Login, found: int | None) -> Admitted:
        n_characters = len(login.name)
        if n_characters > limits.MAX_NAME_CHARACTERS:
            most = limits.MAX_NAME_CHARACTERS
            raise DeclinedError(
                f"client name has {n_characters} characters, at most {most} are allowed"
            )
        return super()._admitted(rights, login, found)._replace(name=login.name)


def _chosen(rights: Rights) -> list[int]:
    """The indexes of its chosen tokens."""
    return [index for index, token in enumerate(rights.tokens) if token.hash.salt is not None]
