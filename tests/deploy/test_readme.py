"""The client of README.md runs, beside what `make run` runs."""

import os
import re
import textwrap
from pathlib import Path
from typing import Any

from eventer_bridge.model import JsonPayload
from tests.support.certificates import make_certificates
from tests.support.gateway import gateway

README = (Path(__file__).parents[2] / "README.md").read_text()


async def test_client_of_the_readme(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    tls = {"cert": str(certificates.server_cert), "key": str(certificates.server_key)}
    development = {
        "name": "development",
        "token": "development",
        "subscriptions": [["*"]],
        "register_events": [{"subscriptions": [["*"]]}],
    }
    code, *_ = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
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
    assert event.payload == JsonPayload.of("on")
    assert result.events == [event]
    assert list(events) == [event]
