"""Newcomers against a list that is searched."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from eventer_bridge.net.admission import Newcomers

STEPS = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("+-!"), st.integers(0, 30)))
"""One of an address comes, one goes, or one sends something; which one."""


@given(STEPS)
def test_as_a_list_that_is_searched(steps: list[tuple[str, str, int]]) -> None:
    has_sent: set[int] = set()
    newcomers: Newcomers[int] = Newcomers(has_sent.__contains__)
    model: list[tuple[int, str]] = []
    for entry, (address, what, index) in enumerate(steps):
        if what == "+" or not model:
            newcomers.add(entry, address)
            model.append((entry, address))
        elif what == "!":
            has_sent.add(model[index % len(model)][0])
        else:
            gone, _ = model.pop(index % len(model))
            newcomers.remove(gone)
            assert gone not in newcomers
        counts = Counter(address for _, address in model)
        assert len(newcomers) == len(model)
        assert {i: newcomers.count(i) for i in "abcd"} == {i: counts[i] for i in "abcd"}
        assert newcomers.largest_count == max(counts.values(), default=0)
        if model:
            first = {a: min((e in has_sent, e) for e, i in model if i == a)[1] for a in counts}
            largest = {first[a] for a in counts if counts[a] == newcomers.largest_count}
            if address == "a":  # not asked each time: it is told only then
                assert {a: newcomers.victim(a) for a in counts} == first
                assert newcomers.victim_of_all() == min((e in has_sent, e) for e, _ in model)[1]
            assert newcomers.victim_of_largest() in largest
