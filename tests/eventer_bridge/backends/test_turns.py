"""Who reads next."""

import pytest

from eventer_bridge import limits
from eventer_bridge.backends.readers import QueryTurns


def begun(turns: QueryTurns[str], count: int) -> list[str | None]:
    return [turns.next() for _ in range(count)]


def test_nobody_waits() -> None:
    turns: QueryTurns[str] = QueryTurns()
    assert turns.next() is None
    turns.new.append("a", "a1")
    assert begun(turns, 2) == ["a1", None]
    turns.begun.leave("a")
    assert turns.begun.n_taken == 0


def test_first_turns_are_not_behind_later_ones() -> None:
    turns: QueryTurns[str] = QueryTurns()
    for n in range(10):
        turns.new.append("a", f"a{n}")
    for _ in range(10):
        item = turns.next()
        assert item is not None
        turns.paused.append("a", item)
    turns.new.append("b", "b1")
    turns.new.append("c", "c1")
    assert begun(turns, 3) == ["b1", "c1", "a0"]


def test_later_turns_get_half_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "READER_TURN_S", 4.0)
    turns: QueryTurns[str] = QueryTurns()
    turns.new.append("a", "costly")
    assert turns.next() == "costly"
    turns.charge(4.0, is_first=True)
    seconds = {"costly": 0.0, "cheap": 0.0}
    turns.paused.append("a", "costly")
    for _ in range(200):
        turns.new.append("b", "cheap")
        item = turns.next()
        assert item is not None
        if item == "cheap":
            turns.charge(1.0, is_first=True)
            turns.begun.leave("b")
            seconds[item] += 1.0
        else:
            turns.charge(4.0, is_first=False)
            turns.paused.append("a", item)
            seconds[item] += 4.0
    assert abs(seconds["costly"] - seconds["cheap"]) <= 8.0


def test_time_that_nobody_else_wanted_is_not_owed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "READER_TURN_S", 4.0)
    turns: QueryTurns[str] = QueryTurns()
    for _ in range(1_000):
        turns.new.append("a", "cheap")
        assert turns.next() == "cheap"
        turns.charge(1.0, is_first=True)
        turns.begun.leave("a")
    turns.new.append("b", "costly")
    assert turns.next() == "costly"
    turns.paused.append("b", "costly")
    turns.new.append("a", "cheap")
    assert turns.next() == "costly"
    turns.charge(4.0, is_first=False)
    assert turns.next() == "cheap"


def test_a_client_begins_as_much_as_it_leaves_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_QUERIES_BEGUN", 8)
    turns: QueryTurns[str] = QueryTurns()
    for n in range(20):
        turns.new.append("a", f"a{n}")
    assert begun(turns, 5) == ["a0", "a1", "a2", "a3", None]
    for n in range(20):
        turns.new.append("b", f"b{n}")
    turns.new.append("c", "c0")
    assert begun(turns, 5) == ["b0", "c0", "b1", None, None]
    turns.new.append("d", "d0")  # whoever has none yet finds a place
    assert begun(turns, 2) == ["d0", None]
    assert turns.begun.n_taken == 8
    for _ in range(3):
        turns.begun.leave("a")
    assert begun(turns, 4) == ["a4", None, None, None]
