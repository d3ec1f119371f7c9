"""The examples of spark/README.md are ones that run."""

import asyncio
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from eventer_bridge.model import Event, Timestamp
from tests.spark.support import fill, plain_events
from tests.support.certificates import make_certificates
from tests.support.gateway import gateway

ROOT = Path(__file__).parents[2]

STORED: list[Event] = [
    replace(event, type=("machine", "cpu", str(n % 2))) for n, event in enumerate(plain_events(20))
]
STORED[1] = replace(STORED[1], source_timestamp=Timestamp(-(10**12), 0))


def examples(path: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / path).read_text(), re.MULTILINE | re.DOTALL)


def run(code: str, names: dict[str, Any], **replaced: str) -> None:
    """Run an example with other words for some of its literals."""
    for old, new in replaced.items():
        assert old in code
        code = code.replace(old, new)
    exec(compile(code, "README.md", "exec"), names)  # noqa: S102  # ours


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Of a gateway with TLS, of which ``ca.pem`` is a CA; its store is ``events``."""
    certificates = make_certificates(tmp_path)
    fill(tmp_path / "events", STORED)
    tls = {"cert": str(certificates.server_cert), "key": str(certificates.server_key)}
    with asyncio.Runner() as runner:
        running = gateway(tmp_path, tls=tls)
        given = runner.run(running.__aenter__())
        with contextlib.ExitStack() as stack:
            stack.callback(lambda: runner.run(running.__aexit__(None, None, None)))
            yield f"{given.host}:{given.port}"


def test_examples(
    spark: SparkSession,
    address: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ca = {"certs/ca.pem": str(tmp_path / "ca.pem")}
    names: dict[str, Any] = {"token": "secret"}
    [counted, odd, batch, stream] = examples("spark/README.md")

    run(counted, names, **{"var/data/development": str(tmp_path / "events")})
    assert names["spark"] is spark
    assert [i for i in capsys.readouterr().out.splitlines() if "machine" in i] == [
        "|machine/cpu/0|   10|",
        "|machine/cpu/1|   10|",
    ]

    run(odd, names, **{"var/data/development": str(tmp_path / "events")})
    assert names["odd"].count() == 1
    assert "|machine/cpu/1|0001-01-01 00:00:00|" in capsys.readouterr().out.splitlines()

    run(batch, names, **{"gateway.example.org:23014": address}, **ca)
    rows = names["events"].collect()
    assert {i.type_path for i in rows} == {"machine/cpu/0", "machine/cpu/1"}
    assert len(rows) == len(STORED)

    run(
        stream,
        names,
        **{
            "gateway-1,gateway-2:23015": address,
            '"events"': f'"{tmp_path}/stream"',
            '"checkpoint"': f'"{tmp_path}/checkpoint"',
        },
        **ca,
    )
    names["query"].processAllAvailable()
    names["query"].stop()
    streamed = spark.read.parquet(str(tmp_path / "stream")).where("type[0] = 'machine'")
    assert streamed.count() == len(STORED)
