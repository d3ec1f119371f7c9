"""Paths of this machine: for stores, certificates and lakes."""

from pathlib import Path

import pytest

from mariner_spark.lake.tables import Lake
from mariner_spark.source import options


@pytest.mark.parametrize("text", ["/a/b c", "file:/a/b c", "file:///a/b c", "/a/../a/b c"])
def test_absolute_paths(text: str) -> None:
    assert options.parse({"path": text}).path == Path("/a/b c")
    lake = Lake(text)
    assert lake.is_local
    assert lake.root == "/a/b c"


def test_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert options.parse({"path": "a"}).path == tmp_path / "a"
    assert Lake("a/file:b").root == f"{tmp_path}/a/file:b"
