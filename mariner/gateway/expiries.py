"""When the certificates and revocation lists of a configuration expire."""

from datetime import datetime

from eventer_bridge import tls
from mariner.gateway.config import GatewayConfig, listeners, remotes


def expiries(config: GatewayConfig) -> dict[str, datetime]:
    """Moments by keys, as ``mariner.tls.cert``; reads the files.

    A CA that expired or a revocation list that is out of date keeps every client out, as a
    certificate does.

    Raises:
        ConfigurationError: a file is missing or invalid.
    """
    found: dict[str, datetime] = {}
    for key, listener in listeners(config).items():
        if listener.tls is None:
            continue
        found[f"{key}.tls.cert"] = tls.expiry(listener.tls.cert)
        if listener.tls.client_ca is not None:
            found[f"{key}.tls.client_ca"] = tls.ca_expiry(listener.tls.client_ca)
        if listener.tls.crl is not None and (moment := tls.crl_expiry(listener.tls.crl)):
            found[f"{key}.tls.crl"] = moment
    for key, remote in remotes(config).items():
        if remote.tls is None:
            continue
        if remote.tls.ca is not None:
            found[f"{key}.tls.ca"] = tls.ca_expiry(remote.tls.ca)
        if remote.tls.cert is not None:
            found[f"{key}.tls.cert"] = tls.expiry(remote.tls.cert)
    return found
