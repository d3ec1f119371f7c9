"""What wrong names and tokens cost."""

import pytest

from eventer_bridge.net import limits
from eventer_bridge.net.admission import LoginPenalties

PERIOD_S = limits.LOGIN_FAILURE_PERIOD_S
FREE = limits.FREE_LOGIN_FAILURES


def test_the_first_mistakes_are_free_then_answers_keep_a_distance() -> None:
    backoff = LoginPenalties()
    delays_s = [backoff.failed("a", 100.0) for _ in range(FREE + 4)]
    assert delays_s == pytest.approx([0.0] * FREE + [PERIOD_S * i for i in range(1, 5)])
    # nobody else pays for it
    assert backoff.failed("b", 100.0) == 0.0


def test_however_many_ask_an_answer_comes_in_time() -> None:
    backoff = LoginPenalties()
    delays_s = [backoff.failed("a", 100.0) for _ in range(10_000)]
    assert max(delays_s) == limits.MAX_LOGIN_DELAY_S
    # and it is over some seconds after the last
    later = 100.0 + limits.MAX_LOGIN_DELAY_S + FREE * PERIOD_S
    assert [backoff.failed("a", later) for _ in range(FREE)] == [0.0] * FREE


def test_who_asks_one_after_the_other_gets_two_answers_a_second() -> None:
    backoff = LoginPenalties()
    now = 0.0
    for _ in range(FREE + 100):
        now += backoff.failed("a", now)
    assert now == pytest.approx(100 * PERIOD_S)


def test_addresses_that_failed_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_FAILED_ADDRESSES", 3)
    monkeypatch.setattr(limits, "FREE_LOGIN_FAILURES", 0)
    backoff = LoginPenalties()
    for address in "abcad":  # "b" failed the longest ago
        backoff.failed(address, 0.0)
    assert len(backoff) == 3
    # remembered: it waits for more than its own mistake
    assert {i: backoff.failed(i, 0.0) > PERIOD_S for i in "dac"} == dict.fromkeys("dac", True)
    assert backoff.failed("b", 0.0) == PERIOD_S
