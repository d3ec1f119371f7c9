"""What is known of a gateway, and what is wrong with it."""

import pytest

from eventer_bridge.model import JsonPayload, Status
from mariner_console import limits
from mariner_console.view import GatewayView, Problem, find_problems, parse
from tests.console.support import event

NOW_S = 1_800_000_000.0
AT_S = 1.5

WELL = """
mariner_store_writable 1.0
mariner_store_free_bytes 5e9
mariner_store_event_types 12.0
mariner_send_lag_seconds{wire="mariner"} 0.0
mariner_config_last_reload_successful 1.0
mariner_tls_expiry_timestamp_seconds{key="mariner.tls.cert"} 1.9e9
process_open_fds 10.0
process_max_fds 100.0
process_start_time_seconds 5.0
"""


def view_of(text: str, status: Status = Status.OPERATIONAL) -> GatewayView:
    view = GatewayView("a")
    view.on_answer(status, AT_S, NOW_S)
    view.on_scrape(parse(text, 1), NOW_S)
    return view


def texts(view: GatewayView) -> list[str]:
    return [i.text for i in find_problems(view, NOW_S, AT_S)]


def test_all_is_well() -> None:
    assert texts(view_of(WELL)) == []


@pytest.mark.parametrize(
    ("line", "text", "is_critical"),
    [
        ("mariner_store_writable 0.0", "the store cannot be written", True),
        ("mariner_store_free_bytes 5e8", "the disk of the store has only 500 MB left", True),
        ("mariner_store_event_types 950000.0", "950,000 event types of at most 1,000,000", False),
        (
            'mariner_send_lag_seconds{wire="mariner"} 61.0',
            "a client of mariner is 61 s behind",
            False,
        ),
        (
            'mariner_client_held{wire="mariner",client="meter"} 1.0',
            "client meter is held back by its quota",
            False,
        ),
        ("mariner_queries_waiting 51.0", "51 queries wait", False),
        ("process_open_fds 81.0", "81 of 100 files are open", False),
        (
            "mariner_config_last_reload_successful 0.0",
            "the last reload of the configuration failed",
            False,
        ),
        (
            'mariner_tls_expiry_timestamp_seconds{key="mariner.tls.cert"} 1.8008e9',
            "mariner.tls.cert expires in 9 days",
            False,
        ),
        (
            'mariner_tls_expiry_timestamp_seconds{key="mariner.tls.cert"} 1.7e9',
            "mariner.tls.cert is expired",
            True,
        ),
        (
            'mariner_remote_connected{server="server 2"} 0.0',
            "no connection to the remote server server 2",
            False,
        ),
        (
            'mariner_replication_lag_seconds{server="2"} 90.0',
            "the replication of 2 is 90 s behind",
            False,
        ),
        ("mariner_clock_ahead_seconds 7000.0", "timestamps are 117 min ahead of the clock", False),
    ],
)
def test_each_problem_is_told(line: str, text: str, is_critical: bool) -> None:
    name = line.split("{", maxsplit=1)[0].split(" ", maxsplit=1)[0]
    others = [i for i in WELL.splitlines() if not i.startswith(name)]
    view = view_of("\n".join([*others, line, ""]))
    assert find_problems(view, NOW_S, AT_S) == [Problem(is_critical, text)]


def test_what_keeps_clients_out_comes_first() -> None:
    view = view_of(WELL.replace("successful 1.0", "successful 0.0"), Status.STANDBY)
    view.alarms.take([event(("alarm", "a"), JsonPayload.of({"state": "RAISED"}))])
    assert texts(view) == [
        "status STANDBY: nothing can be registered",
        "alarms raised: 1",
        "the last reload of the configuration failed",
    ]
    view.on_hindrance("feed is not connected: 10.0.0.1:23012: connection refused")
    assert texts(view)[0] == (
        "status STANDBY: nothing can be registered: feed is not connected: 10.0.0.1:23012:"
        " connection refused"
    )


def test_only_what_was_seen_in_the_last_seconds_counts() -> None:
    view = view_of(WELL.replace("successful 1.0", "successful 0.0"))
    assert texts(view) == ["the last reload of the configuration failed"]

    def later(at_s: float) -> list[Problem]:
        return find_problems(view, NOW_S, at_s)

    silent_s = AT_S + limits.SILENT_S
    assert view.is_seen(silent_s - 0.1)
    assert not view.is_seen(silent_s)
    assert later(silent_s) == [Problem(True, "no answer since 08:00:00 UTC")]
    view.on_answer(Status.OPERATIONAL, 20, NOW_S)
    assert later(20) == [Problem(False, "no metrics for more than 6 s")]
    view.on_lost("refused")
    assert later(20) == [Problem(True, "not connected: refused")]
    assert view.scrape is not None  # to be shown as old


def test_why_it_was_standby_is_forgotten() -> None:
    view = view_of(WELL, Status.STANDBY)
    view.on_hindrance("the disk is full")
    view.on_answer(Status.OPERATIONAL, AT_S, NOW_S)
    view.on_hindrance("the disk is full")  # asked before, told after
    view.on_answer(Status.STANDBY, AT_S, NOW_S)
    assert texts(view) == ["status STANDBY: nothing can be registered"]
    view.on_hindrance("the disk is full")
    view.on_lost("gone")
    view.on_answer(Status.STANDBY, AT_S, NOW_S)
    assert texts(view) == ["status STANDBY: nothing can be registered"]


def test_metrics_that_cannot_be_read_leave_a_gap() -> None:
    view = view_of(WELL)
    view.on_scrape(parse(WELL, 2), NOW_S + 1)
    view.on_scrape_failed("HTTP status 500", NOW_S + 2)
    view.on_scrape_failed("HTTP status 500", NOW_S + 3)
    assert texts(view) == ["no metrics: HTTP status 500"]
    view.on_scrape(parse(WELL, 4), NOW_S + 4)
    view.on_scrape(parse(WELL, 5), NOW_S + 5)
    assert [i.at_s - NOW_S for i in view.history] == [1, 2, 5]
    assert set(view.history[1][1:]) == {None}
    assert view.point is view.history[-1]


def test_the_history_has_rates_and_a_bound() -> None:
    view = GatewayView("a")
    for i in range(limits.MAX_HISTORY_POINTS + 10):
        text = f"process_start_time_seconds 1.0\nmariner_events_registered_total {i * 6}.0\n"
        view.on_scrape(parse(text, 2 * i), NOW_S + 2 * i)
    assert len(view.history) == limits.MAX_HISTORY_POINTS
    assert view.point is not None
    assert view.point.registered == 3
    assert view.point.notified is None
    view.on_scrape(parse("process_start_time_seconds 9.0\n", 10_000), NOW_S)
    assert view.point is None  # a gateway that was started anew has no rates yet
