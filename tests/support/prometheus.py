"""A real Prometheus that scrapes what a test runs."""

import asyncio
import contextlib
import re
import shutil
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
import yaml

from tests.support import process as processes

PERIOD_S: Final = 0.5
"""Between two scrapes, and between two evaluations of the rules."""

needs_promtool: Final = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="there is no promtool (Debian: prometheus)"
)
needs_prometheus: Final = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="there is no prometheus"
)

_LISTENING: Final = re.compile(r'msg="Listening on" address=127\.0\.0\.1:(\d+)')


class Prometheus:
    """Asks it. Created by :func:`prometheus`."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._session = session

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an expression, each with its labels (``metric``) and ``value``."""
        found: list[dict[str, Any]] = (await self._ask("query", {"query": expression}))["result"]
        return found

    async def alerts(self) -> dict[str, list[dict[str, Any]]]:
        """Alerts that fire, by name."""
        found: dict[str, list[dict[str, Any]]] = {}
        for alert in (await self._ask("alerts"))["alerts"]:
            if alert["state"] == "firing":
                found.setdefault(alert["labels"]["alertname"], []).append(alert)
        return found

    async def until_firing(self, *names: str) -> dict[str, list[dict[str, Any]]]:
        """Wait until these alerts fire; returns all that do."""
        while not (found := await self.alerts()).keys() >= set(names):
            await asyncio.sleep(PERIOD_S)
        return found

    async def _ask(self, what: str, parameters: Mapping[str, str] | None = None) -> Any:
        url = f"{self._url}/api/v1/{what}"
        async with self._session.get(url, params=parameters) as response:
            answer = await response.json()
        assert answer["status"] == "success", (parameters, answer)
        return answer["data"]


@contextlib.asynccontextmanager
async def prometheus(
    directory: Path, rules: Mapping[str, Any], *targets: str
) -> AsyncIterator[Prometheus]:
    """Run it, with its data in a directory, until the end of the block.

    Args:
        directory: for its configuration, data and output.
        rules: alerts, which fire as soon as they are true: ``for`` is left out.
        targets: ``host:port`` of what is scraped, as job ``mariner``.
    """
    for group in rules["groups"]:
        group["rules"] = [{**rule, "for": "0s"} for rule in group["rules"]]
    (directory / "alerts.yml").write_text(yaml.safe_dump(rules))
    period = f"{PERIOD_S * 1000:.0f}ms"
    conf = {
        "global": dict.fromkeys(
            ("scrape_interval", "scrape_timeout", "evaluation_interval"), period
        ),
        "rule_files": ["alerts.yml"],
        "scrape_configs": [
            {"job_name": "mariner", "static_configs": [{"targets": [*targets]}]},
        ],
    }
    (directory / "prometheus.yml").write_text(yaml.safe_dump(conf))
    output = directory / "prometheus.log"
    with output.open("wb") as sink:
        process = await asyncio.create_subprocess_exec(
            "prometheus",
            f"--config.file={directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={directory / 'prometheus'}",
            "--web.listen-address=127.0.0.1:0",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
        )

    async def probe() -> str | None:
        text = output.read_text()
        match = _LISTENING.search(text) if "Server is ready" in text else None
        return match and match[1]

    try:
        port = await processes.wait_ready(process, output, probe)
        async with aiohttp.ClientSession() as session:
            yield Prometheus(f"http://127.0.0.1:{port}", session)
    finally:
        process.terminate()
        await process.wait()
