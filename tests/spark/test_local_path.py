"""Paths of this machine: for stores, certificates and lakes."""

from pathlib import Path

import pytest

from mariner_spark.lake.files import Files
from mariner_spark.source import options


@pytest.mark.parametrize("text", ["/a/b c", "file:/a/b c", "file:///a/b c", "/a/../a/b c"])
def test_absolute_paths(text: str) -> None:
    assert options.parse({"path": text}).path == Path("/a/b c")
    files = Files(text)
    assert files.is_local
    assert (files.base, files.root) == ("/a/b c", "file:///a/b c")


def test_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert options.parse({"path": "a"}).path == tmp_path / "a"
    assert Files("a/file:b").base == f"{tmp_path}/a/file:b"
