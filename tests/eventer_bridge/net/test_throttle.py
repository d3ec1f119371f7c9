"""Token buckets."""

import pytest

from eventer_bridge.net.throttle import TokenBucket


def test_a_bucket_holds_the_amount_of_a_second() -> None:
    bucket = TokenBucket(10, now_s=5)
    assert bucket.balance(5) == 10
    bucket.spend(4, 5)
    assert bucket.balance(5.2) == pytest.approx(8)
    assert bucket.balance(100) == 10


def test_a_bucket_is_overdrawn_and_paid_for() -> None:
    bucket = TokenBucket(10, now_s=0)
    bucket.spend(25, 0)
    assert bucket.balance(0) == -15
    assert bucket.balance(1) == -5
    bucket.spend(1, 1)
    assert bucket.balance(1.5) == -1
    assert bucket.balance(2) == 4
