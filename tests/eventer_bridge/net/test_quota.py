"""Bounds of connections, and what an address is."""

import pytest

from eventer_bridge.net import limits
from eventer_bridge.net.quota import Bounds, Quota, address_of


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
    ],
)
def test_what_connections_are_counted_by(host: str, address: str) -> None:
    assert address_of(host) == address


def test_a_bound_for_each_address_and_one_for_all() -> None:
    quota = Quota(3, 2)
    assert [quota.take(i) for i in "aaabc"] == [True, True, False, True, False]
    quota.give_back("a")
    assert [quota.take(i) for i in "bc"] == [True, False]
    for i in "abb":
        quota.give_back(i)
    assert [quota.take(i) for i in "ccaa"] == [True, True, True, False]


@pytest.mark.parametrize("connections", [limits.MIN_CONNECTIONS, 100, 640, 10_999, 11_000, 10**6])
def test_bounds_fit(connections: int) -> None:
    usual = Bounds.usual()
    bounds = usual.fitting(connections)
    assert bounds.new + bounds.known <= connections
    assert (bounds == usual) is (connections >= 11_000)
    for ours, most in zip(bounds, usual, strict=True):
        assert 0 < ours <= most
    assert bounds.new_per_address <= bounds.new
    assert bounds.known_per_address <= bounds.known
