"""The examples of spark/README.md are ones that run."""

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from eventer_bridge.model import Event, Timestamp
from mariner_spark import session
from tests.spark.support import fill, plain_events
from tests.support.certificates import make_certificates
from tests.support.gateway import gateway
from tests.support.object_store import object_store
from tests.support.wheel import QUICKLY, copy_source

ROOT = Path(__file__).parents[2]

STORED: list[Event] = [
    replace(event, type=("machine", "cpu", str(n % 2))) for n, event in enumerate(plain_events(20))
]
STORED[1] = replace(STORED[1], source_timestamp=Timestamp(-(10**12), 0))


def examples(path: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / path).read_text(), re.MULTILINE | re.DOTALL)


def of_spark(address: str, folder: Path) -> list[str]:
    """Examples of ``spark/README.md``, about what is in a folder and the gateway there."""
    store = {"var/data/development": str(folder / "events")}
    ca = {"certs/ca.pem": str(folder / "ca.pem")}
    sink = {'"events"': f'"{folder}/stream"', '"checkpoint"': f'"{folder}/checkpoint"'}
    replaced: tuple[dict[str, str], ...] = (
        store,
        store,
        {"gateway.example.org:23014": address, **ca},
        {"gateway-1,gateway-2:23015": address, **sink, **ca},
    )
    codes = []
    for code, words in zip(examples("spark/README.md"), replaced, strict=True):
        for old, new in words.items():
            assert old in code
            code = code.replace(old, new)  # noqa: PLW2901
        codes.append(code)
    return codes


def run(code: str, names: dict[str, Any]) -> None:
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


@pytest.mark.usefixtures("only_users_packages")
def test_examples(
    spark: SparkSession,
    address: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    names: dict[str, Any] = {"token": "secret"}
    [counted, odd, batch, stream] = of_spark(address, tmp_path)

    run(counted, names)
    assert names["spark"] is spark
    assert [i for i in capsys.readouterr().out.splitlines() if "machine" in i] == [
        "|machine/cpu/0|   10|",
        "|machine/cpu/1|   10|",
    ]

    run(odd, names)
    assert names["odd"].count() == 1
    assert "0001-01-01 00:00:00" in capsys.readouterr().out

    run(batch, names)
    rows = names["events"].collect()
    assert {i.type_path for i in rows} == {"machine/cpu/0", "machine/cpu/1"}
    assert len(rows) == len(STORED)

    run(stream, names)
    names["query"].processAllAvailable()
    names["query"].stop()
    streamed = spark.read.parquet(str(tmp_path / "stream")).where("type[0] = 'machine'")
    assert streamed.count() == len(STORED)


# --- as users install it ------------------------------------------------------------------

_PROGRAM = """
token, seen = "secret", 0
{examples}
query.processAllAvailable()
query.stop()
streamed = spark.read.parquet("stream")
print(*(i.where("type_path LIKE 'machine/%'").count() for i in (streamed, before)))
"""

ENGINES = ("duckdb_extension_delta", "pandas", "polars")
"""What ``lake/README.md`` reads a lake with that the extra does not bring."""


@pytest.mark.slow
@pytest.mark.timeout(1_200)  # it downloads Spark, where pip does not have it
def test_the_extra_brings_all_that_examples_need(address: str, tmp_path: Path) -> None:
    """In an environment of its own that is not activated; also reports from an object store."""
    checkout = copy_source(tmp_path / "source")
    venv.create(tmp_path / "users", with_pip=True)
    programs = tmp_path / "users" / "bin"
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in {"JAVA_HOME", "PYSPARK_PYTHON", "PYTHONPATH", "SPARK_HOME", "VIRTUAL_ENV"}
    }
    environment |= {
        **QUICKLY,
        "PATH": os.pathsep.join(
            i
            for i in os.environ["PATH"].split(os.pathsep)
            if Path(i) != Path(sys.executable).parent
        ),
        "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        session.CACHE_VARIABLE: str(tmp_path / "cache"),
    }

    def done(program: str, *arguments: str | Path) -> str:
        """What a program of the environment prints."""
        done = subprocess.run(
            [programs / program, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    done("pip", "install", checkout / "mariner" / "client", f"{checkout}[spark]")
    with object_store(tmp_path) as bucket:
        environment |= {i: j for i, j in os.environ.items() if i.startswith("AWS_")}
        for lake in ("lake", f"{bucket}/lake"):
            assert " events added, " in done("mariner", "lake", "ingest", lake, "--store", "events")
        for engine in ("duckdb", "spark"):
            source = ("--lake", f"{bucket}/lake", "--engine", engine)
            done("mariner", "report", "top", *source, "--out", engine)
            assert '"machine/cpu/0",10,' in (tmp_path / engine / "top.csv").read_text()
    of_lake = examples("spark/mariner_spark/lake/README.md")
    others = [code for code in of_lake if any(name in code for name in ENGINES)]
    of_extra = [code for code in of_lake if code not in others]
    codes = "\n".join((*of_spark(address, tmp_path), *of_extra))
    (tmp_path / "program.py").write_text(_PROGRAM.format(examples=codes))
    assert done("python", "program.py").splitlines()[-1] == "20 20"

    done("pip", "install", *(name.replace("_", "-") for name in ENGINES))
    assert len(others) == len(ENGINES)
    (tmp_path / "others.py").write_text("\n".join(others))
    done("python", "others.py")
