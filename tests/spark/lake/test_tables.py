"""The tables of a lake."""

import os
from pathlib import Path

import pytest

from mariner_spark.errors import LakeError
from mariner_spark.lake.tables import EVENTS, Lake, log_path


def test_a_fifo_in_a_lake_blocks_nobody(tmp_path: Path) -> None:
    fifo = tmp_path / EVENTS / log_path(0)
    fifo.parent.mkdir(parents=True)
    os.mkfifo(fifo)
    with pytest.raises(LakeError, match=f"{fifo}: a FIFO or a device, expected a regular file"):
        Lake(str(tmp_path)).find()
