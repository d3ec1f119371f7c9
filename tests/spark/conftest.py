"""All tests here keep off the folders of the user who runs them."""

import sys
from collections.abc import Container, Iterator
from importlib import metadata
from importlib.abc import MetaPathFinder

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pyspark.sql import SparkSession


@pytest.fixture(scope="package", autouse=True)
def _cache(spark_cache: None) -> None:
    """See ``tests/conftest.py``."""


@pytest.fixture(scope="module")
def other_time_zone(spark: SparkSession) -> Iterator[None]:
    """A session whose time zone is not UTC, and is not a whole number of hours from it."""
    before = spark.conf.get("spark.sql.session.timeZone") or "UTC"
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    yield
    spark.conf.set("spark.sql.session.timeZone", before)


def required(*extras: str) -> set[str]:
    """Names of the distributions that ``mariner-gateway`` with some extras brings."""
    found: set[str] = set()
    todo = [("mariner-gateway", frozenset(extras))]
    while todo:
        name, wanted = todo.pop()
        for text in metadata.requires(name) or ():
            needed = Requirement(text)
            needed_name = canonicalize_name(needed.name)
            is_new = needed_name not in found or needed.extras
            if is_new and any(
                needed.marker is None or needed.marker.evaluate({"extra": i}) for i in ("", *wanted)
            ):
                found.add(needed_name)
                todo.append((needed_name, frozenset(needed.extras)))
    return found


@pytest.fixture
def only_users_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """To import what the extra ``dev-spark`` brings fails, as where it is not installed."""
    others = required("dev-spark") - required("spark")
    modules = {
        module
        for module, names in metadata.packages_distributions().items()
        if others.issuperset(map(canonicalize_name, names))
    }
    assert "pandas" in modules
    for module in modules:
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Missing(modules), *sys.meta_path])


class Missing(MetaPathFinder):
    """Finds that some modules are not there."""

    def __init__(self, modules: Container[str]) -> None:
        self._modules = modules

    def find_spec(self, name: str, *_: object) -> None:
        if name in self._modules:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
