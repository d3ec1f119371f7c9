"""Newcomers against a list that is searched."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from eventer_bridge.net.newcomers import Newcomers

STEPS = st.lists(st.tuples(st.sampled_from("abcd"), st.booleans(), st.integers(0, 30)))


@given(STEPS)
def test_as_a_list_that_is_searched(steps: list[tuple[str, bool, int]]) -> None:
    newcomers: Newcomers[int] = Newcomers()
    model: list[tuple[int, str]] = []
    for entry, (address, is_added, index) in enumerate(steps):
        if is_added or not model:
            newcomers.add(entry, address)
            model.append((entry, address))
        else:
            gone, _ = model.pop(index % len(model))
            newcomers.remove(gone)
            assert gone not in newcomers
        counts = Counter(address for _, address in model)
        assert len(newcomers) == len(model)
        assert {i: newcomers.count(i) for i in "abcd"} == {i: counts[i] for i in "abcd"}
        assert newcomers.largest_count == max(counts.values(), default=0)
        if model:
            assert newcomers.oldest() == model[0][0]
            oldest = {a: next(e for e, i in model if i == a) for a in counts}
            assert {a: newcomers.oldest_of(a) for a in counts} == oldest
            largest = {oldest[a] for a in counts if counts[a] == newcomers.largest_count}
            assert newcomers.oldest_of_largest() in largest
