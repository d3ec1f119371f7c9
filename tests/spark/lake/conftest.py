"""Places that a lake can be at: a folder, and an object store that speaks S3."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import object_store as object_stores


@pytest.fixture(scope="session")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URI of a bucket; this process finds its server by the environment."""
    with object_stores.object_store(tmp_path_factory.mktemp("s3")) as url:
        yield url


@pytest.fixture(params=["local", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a lake can be, with a name that is not simple."""
    if request.param == "local":
        return str(tmp_path / "l a{k}e*?#%é")
    bucket: str = request.getfixturevalue("object_store")
    return f"{bucket}/{tmp_path.name}/l a{{k}}e"
