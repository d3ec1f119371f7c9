"""The order of backups, by the states of stores."""

import pytest

from mariner.cli.backup_places import StoreState, in_order, newest, surplus

RESTORED = {
    "9": StoreState(("a",), 10),
    "8": StoreState(("a",), 90),
    "7": StoreState(("a", "b"), 20),
    "6": StoreState(("a", "b", "c"), 15),
}
"""A store that was restored twice, from earlier states; its clock runs backwards."""


def test_what_continues_a_history_is_newer() -> None:
    assert in_order(RESTORED, ("a", "b", "c")) == ["9", "8", "7", "6"]
    assert in_order(RESTORED, ("a", "b")) == ["9", "8", "7"]
    assert newest(RESTORED) == ["6"]


def test_stores_and_diverged_histories_have_no_order() -> None:
    others = {**RESTORED, "x": StoreState(("a", "d"), 99), "y": StoreState(("z",), 1)}
    assert newest(others) == ["6", "x", "y"]
    assert in_order(others, ("a", "d")) == ["9", "8", "x"]
    assert newest({}) == []
    assert newest({"1": StoreState((), 1)}) == []


@pytest.mark.parametrize(
    ("made", "n_kept", "removed"),
    [
        ("6", 1, ["9", "8", "7"]),
        ("6", 3, ["9"]),
        ("6", 4, []),
        ("6", 9, []),
        # of a history that another one continues: that is not of its store
        ("8", 1, ["9"]),
        ("9", 1, []),
        ("9", 2, []),
    ],
)
def test_what_is_removed(made: str, n_kept: int, removed: list[str]) -> None:
    assert surplus(RESTORED, made, n_kept) == removed
