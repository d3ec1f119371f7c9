"""The file of a buffer against a model of it."""

import contextlib
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from mariner import limits
from mariner.client.buffer_file import (
    BufferChange,
    BufferedRegistration,
    BufferFile,
    WhenFull,
)

MAX_BYTES = 8 * limits.BUFFER_ROW_BYTES

STEPS = st.lists(
    st.tuples(
        st.sampled_from([*["add"] * 6, *["refuse"] * 2, "forward", "retry", "drop", "open"]),
        st.sampled_from([0, limits.BUFFER_ROW_BYTES, 2 * limits.BUFFER_ROW_BYTES, 37]),
    ),
    min_size=20,
    max_size=60,
)


class Model:
    """What a buffer should hold: sizes by id."""

    def __init__(self, when_full: WhenFull) -> None:
        self._when_full = when_full
        self._last_id = 0
        self.waiting: dict[int, int] = {}
        self.refused: dict[int, int] = {}
        self.dropped = 0

    @property
    def n_bytes(self) -> int:
        return sum(self.waiting.values()) + sum(self.refused.values())

    def add(self, n_bytes: int) -> bool:
        is_full = self.n_bytes + n_bytes > MAX_BYTES
        if is_full and self._when_full is WhenFull.REFUSE:
            return False
        while self.n_bytes + n_bytes > MAX_BYTES:
            oldest = self.refused or self.waiting
            del oldest[min(oldest)]
            self.dropped += 1
        self._last_id += 1
        self.waiting[self._last_id] = n_bytes
        return True

    def retry(self) -> int:
        for n_bytes in self.refused.values():
            self._last_id += 1
            self.waiting[self._last_id] = n_bytes
        count = len(self.refused)
        self.refused.clear()
        return count


def opened(path: str, when_full: WhenFull) -> BufferFile:
    return BufferFile(Path(path) / "buffer", MAX_BYTES, when_full)


@given(st.sampled_from(WhenFull), STEPS)
def test_it_holds_what_it_should(when_full: WhenFull, steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as path, contextlib.ExitStack() as stack:
        model, forwarded = Model(when_full), 0
        file = opened(path, when_full)
        for step, size in steps:
            some = [*model.waiting][: size % 3]
            match step:
                case "add":
                    row = BufferedRegistration(0, "key", b"x" * size, 1)
                    [error] = file.apply(BufferChange([row], [], []))
                    assert (error is None) is model.add(row.size_bytes)
                case "forward":
                    file.apply(BufferChange([], some, []))
                    forwarded += len(some)
                    for i in some:
                        del model.waiting[i]
                case "refuse":
                    file.apply(BufferChange([], [], [(i, "why") for i in some]))
                    model.refused |= {i: model.waiting.pop(i) for i in some}
                case "retry":
                    assert file.retry_refused() == model.retry()
                case "drop":
                    assert file.drop_refused() == len(model.refused)
                    model.dropped += len(model.refused)
                    model.refused.clear()
                case "open":
                    file.close()
                    file = opened(path, when_full)
            status = file.status()
            assert (status.waiting, status.refused) == (len(model.waiting), len(model.refused))
            assert (status.bytes, status.dropped) == (model.n_bytes, model.dropped)
            assert status.forwarded == forwarded
            rows = file.read(0, 1_000, MAX_BYTES * 2)
            assert {i.id: i.size_bytes for i in rows} == model.waiting
        stack.callback(file.close)
