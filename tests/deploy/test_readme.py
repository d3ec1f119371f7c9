"""The clients of README.md and docs/python.md run, beside what `make run` runs."""

import os
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

import mariner
from eventer_bridge import limits
from eventer_bridge.model import JsonPayload
from eventer_bridge.resources import read_schema
from mariner import limits as mariner_limits
from tests.support.certificates import make_certificates
from tests.support.gateway import gateway

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PYTHON = (ROOT / "docs" / "python.md").read_text()


def examples(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_bounds_are_those_of_the_code() -> None:
    promise = f"cannot be resolved for {mariner_limits.UNKNOWN_HOST_S:.0f} s"
    assert promise in " ".join(PYTHON.split())


def test_defaults_of_the_schema_are_those_of_the_code() -> None:
    schema = yaml.safe_load(read_schema("gateway.yaml"))
    core = schema["properties"]["event_core"]["properties"]
    defaults = {
        limits.MAX_CLIENT_EVENT_TYPES: (
            schema["$defs"]["quota"]["properties"]["max_event_types"],
            core["rsb"]["properties"]["max_event_types"],
        ),
        limits.MAX_CLIENT_SUBSCRIPTIONS: (
            schema["$defs"]["quota"]["properties"]["max_subscriptions"],
        ),
        limits.REQUEST_KEYS: (schema["$defs"]["request_keys"]["properties"]["max_entries"],),
        limits.REQUEST_KEYS_S: (schema["$defs"]["request_keys"]["properties"]["duration"],),
    }
    for default, described in defaults.items():
        assert [i["default"] for i in described] == [default] * len(described)


def test_the_readme_has_the_second() -> None:
    assert examples(README) == examples(PYTHON)[1:2]


async def test_one_connection(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    tls = {"cert": str(certificates.server_cert), "key": str(certificates.server_key)}
    development = {
        "name": "development",
        "token": "development",
        "subscriptions": [["*"]],
        "register_events": [{"subscriptions": [["*"]]}],
    }
    code, *_ = examples(PYTHON)
    async with gateway(tmp_path, tls=tls, clients=[development]) as running:
        for old, new in {
            "23014": str(running.port),
            "var/certs/ca.pem": os.fspath(certificates.ca),
            "...": "return event, result, events",
        }.items():
            assert old in code
            code = code.replace(old, new)
        names: dict[str, Any] = {}
        exec(f"async def example():\n{textwrap.indent(code, '    ')}", names)  # noqa: S102  # ours
        event, result, events = await names["example"]()
    assert event.payload == JsonPayload.of({"on": True})
    assert result.events == [event]
    assert list(events) == [event]


async def test_clients_that_outlive_their_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    codes = examples(PYTHON)
    code = "\n".join(i for i in codes if "ReconnectingClient(" in i or "BufferedClient." in i)
    certificates = make_certificates(tmp_path)
    keys = {"cert": str(certificates.server_cert), "key": str(certificates.server_key)}
    async with gateway(tmp_path, tls=keys) as running:
        for old, new in {
            '("gateway-1", "gateway-2")': f'("{running.host}",)',
            "23014": str(running.port),
            "var/certs/ca.pem": os.fspath(certificates.ca),
            "        await batch.ack()\n": "        await batch.ack()\n        break\n",
        }.items():
            assert old in code
            code = code.replace(old, new)
        names: dict[str, Any] = {"mariner": mariner, "token": "secret"}
        code += "    await buffered.drain()\n"
        exec(f"async def example():\n{textwrap.indent(code, '    ')}", names)  # noqa: S102  # ours
        await names["example"]()
        async with await mariner.connect(
            running.host,
            running.port,
            client_name="app",
            client_token="secret",
            ssl=mariner.tls.client_context(ca=certificates.ca),
        ) as connection:
            result = await connection.query(mariner.timeseries("lamp/1"))
    assert len(result.events) == 2
