"""All tests here keep off the folders of the user who runs them."""

import pytest


@pytest.fixture(scope="package", autouse=True)
def _cache(spark_cache: None) -> None:
    """See ``tests/conftest.py``."""
