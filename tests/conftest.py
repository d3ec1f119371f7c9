"""Hooks of all tests."""

import asyncio
import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import hypothesis
import pytest
import uvloop

from eventer_bridge import limits
from mariner import limits as gateway_limits
from tests.support import forked
from tests.support.examples import examples

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.postgresql import Cluster

ROOT: Final = Path(__file__).parent

NEED_SPARK: Final = (
    "spark",
    "mariner/cli/test_lake_commands.py",
    "perf/test_perf.py",
    "torture/test_main.py",
)
"""Without the extra ``spark`` these cannot even be imported, or start processes that need it."""

HAS_SPARK: Final = importlib.util.find_spec("pyspark") is not None

hypothesis.settings.register_profile(
    "patient",  # by itself it fails a test that took 200 ms, or whose examples took long to make
    deadline=None,
    max_examples=examples(30),
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("patient")

collect_ignore = [] if HAS_SPARK else list(NEED_SPARK)

forked.enable()

if os.access("/dev/shm", os.W_OK):  # stores that only last as long as a test
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # others stay on a disk
    tempfile.tempdir = "/dev/shm"

LONG: Final = ("spark", "torture", "perf", "eventer_bridge/backends", "test_wheel.py")
"""Begun first, so that no worker is left alone with one of them in the end."""

PATIENT: Final = (
    *("spark", "torture", "perf", "deploy", "console"),
    *("test_wheel.py", "test_client_wheel.py", "test_build.py"),
)
"""They start a JVM, browsers, builds or many processes, which take a minute on a busy machine."""

PATIENT_TIMEOUT_S: Final = 600
"""For these, and for what is ``slow``; a test that needs more says so itself."""


def pytest_report_header() -> str:
    """Tests that are left out are told of."""
    return "with Spark" if HAS_SPARK else "without Spark, and all tests that need it"


MAX_ID_CHARACTERS: Final = 80
"""Of what a test is called after: pytest hands its name to the processes that the test starts."""


def pytest_make_parametrize_id(val: object) -> str | None:
    """Some tests are given messages of megabytes."""
    if isinstance(val, (str, bytes)) and len(val) > MAX_ID_CHARACTERS:
        return ascii(val[:MAX_ID_CHARACTERS])
    return None


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks at the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Arrange the tests for several workers: what shares a Spark session or a server stays
    together."""
    for item in items:
        asyncio_mark = item.get_closest_marker("asyncio")
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif "postgresql" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("postgresql"))
        elif asyncio_mark is not None and asyncio_mark.kwargs.get("loop_scope") == "module":
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
        _give_time(item)
    items.sort(key=lambda item: not item.path.relative_to(ROOT).as_posix().startswith(LONG))


def _give_time(item: pytest.Item) -> None:
    """Some tests may take longer than others before they are taken to hang."""
    usual_s = float(item.config.getini("timeout") or 0)
    is_patient = item.path.relative_to(ROOT).as_posix().startswith(PATIENT)
    if (
        0 < usual_s < PATIENT_TIMEOUT_S  # else somebody asked for more, or for no limit
        and (is_patient or item.get_closest_marker("slow"))
        and not item.get_closest_marker("timeout")
    ):
        item.add_marker(pytest.mark.timeout(PATIENT_TIMEOUT_S))


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests run on the loop that the gateway runs on."""
    return {"uvloop": uvloop.new_event_loop}


TIMES_OF_WORK: Final = (
    "SCRYPT_TIMEOUT_S",
    "SCHEMA_CHECK_TIMEOUT_S",
    "SCHEMA_START_TIMEOUT_S",
    "MODULE_TIMEOUT_S",
    "LOOK_TIMEOUT_S",
)
"""Limits of work that takes a fraction of them; what takes longer is declined or refused."""


@pytest.fixture(scope="session", autouse=True)
def patience() -> Iterator[None]:
    """Nothing that is right is refused because the machine is busy."""
    with pytest.MonkeyPatch.context() as patch:
        importlib.import_module("eventer_bridge.net.limits")  # compares them, as they are
        for name in TIMES_OF_WORK:
            patch.setattr(limits, name, 60.0)
        patch.setattr(gateway_limits, "OLDEST_TIMEOUT_S", 60.0)
        yield


@pytest.fixture(scope="session")
def postgresql() -> "Iterator[Cluster]":
    """A primary and two standbys for all tests that take them; they are run by one worker."""
    from tests.support.postgresql import cluster

    with cluster() as servers:
        yield servers


# --- Spark, which takes long to import and to start, and need not be installed ---------------


JAVA_OPTIONS: Final = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""Java loads a class without a proof that its bytecode is sound: a fifth of the start."""

SPARK_DEFAULTS: Final = f"""
spark.sql.codegen.wholeStage false
spark.sql.codegen.factoryMode NO_CODEGEN
spark.executor.defaultJavaOptions {JAVA_OPTIONS}
"""
"""Plans are interpreted: for few rows that is less work than to compile them."""


@pytest.fixture(scope="session", autouse=True)
def spark_defaults(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Any Spark that tests start is made for few rows."""
    folder = tmp_path_factory.mktemp("spark-conf")
    (folder / "spark-defaults.conf").write_text(SPARK_DEFAULTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_CONF_DIR", str(folder))
        patch.setenv("SPARK_SUBMIT_OPTS", JAVA_OPTIONS)
        patch.setenv("SPARK_LAUNCHER_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        yield


@pytest.fixture(scope="session")
def spark_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder of its own for what Spark keeps."""
    from tests.support.spark import cache_folder

    with cache_folder(tmp_path_factory.mktemp("cache")):
        yield


@pytest.fixture(scope="session")
def spark(spark_cache: None) -> "Iterator[SparkSession]":
    """One session for all tests that take it; they are run by one worker."""
    from tests.support.spark import session

    with session() as spark:
        yield spark
