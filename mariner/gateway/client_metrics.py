"""Metrics of clients: who is held back, and how often each met its quota.

Labels are names of the configuration. Clients that share a token share one of them, and those that
never met their quota have none: no peer can make more of them.
"""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from eventer_bridge.core.quotas import Accounts


class ClientsCollector(Collector):
    """See the module; reads when it is scraped.

    Args:
        accounts: returns those of each wire.
    """

    def __init__(self, accounts: Callable[[], Mapping[str, Accounts]]) -> None:
        self._accounts = accounts

    def collect(self) -> Iterable[Metric]:
        """Of clients that met their quota."""
        labels = ["wire", "client"]
        held = GaugeMetricFamily(
            "mariner_client_held",
            "1 while a client is held back to a rate of its quota",
            None,
            labels,
        )
        seconds = CounterMetricFamily(
            "mariner_client_held_seconds",
            "Seconds in which a client was held back: not read from, or its queries not begun",
            None,
            labels,
        )
        hits = CounterMetricFamily(
            "mariner_client_quota_hits",
            "Times that a client met a bound of its quota",
            None,
            [*labels, "quota"],
        )
        for wire, accounts in self._accounts().items():
            for account in accounts:
                for name, count in sorted(account.hits.items()):
                    hits.add_metric([wire, account.name, name], count)
                if account.hits and (throttle := account.throttle) is not None:
                    held.add_metric([wire, account.name], int(throttle.is_holding))
                    seconds.add_metric([wire, account.name], throttle.held_s)
        yield from (held, seconds, hits)
