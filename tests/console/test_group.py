"""The group of a gateway: what is wrong with it, its members, and that it steps down."""

import logging
import time
from pathlib import Path

import pytest
from nicegui import Client, ui

from eventer_bridge.errors import ControlError
from eventer_bridge.group import limits as group_limits
from eventer_bridge.model import Status
from mariner.gateway.counts import StatusReport
from mariner.gateway.group_requests import StepDownAnswer, StepDownRequest
from mariner_console import limits, texts
from mariner_console.config import WatchedGateway
from mariner_console.page import parts
from mariner_console.page.overview import OverviewPanel
from mariner_console.view import GatewayView, Problem, find_problems, parse
from mariner_console.watcher import Watcher
from tests.support.member_gateway import make_group, member_gateway
from tests.support.postgresql import Cluster
from tests.support.waiting import until

WELL = """
mariner_group_active{group="plant"} 0.0
mariner_group_epoch{group="plant"} 7.0
mariner_group_takeovers_total{group="plant"} 2.0
mariner_group_silent_seconds{group="plant"} 0.5
mariner_group_log_records{group="plant"} 300.0
mariner_group_member_active{group="plant",member="a"} 1.0
mariner_group_member_active{group="plant",member="b"} 0.0
mariner_group_member_position{group="plant",member="a"} 1234567.0
mariner_group_member_position{group="plant",member="b"} 1234560.0
mariner_group_member_lag_records{group="plant",member="a"} 0.0
mariner_group_member_lag_records{group="plant",member="b"} 7.0
mariner_group_member_lag_seconds{group="plant",member="a"} 0.0
mariner_group_member_lag_seconds{group="plant",member="b"} 0.25
mariner_group_member_seen_seconds{group="plant",member="a"} 0.5
mariner_group_member_seen_seconds{group="plant",member="b"} 0.75
"""


def with_values(text: str, **values: float) -> str:
    """Metrics, some with other values: by the name without prefix, or name and member."""
    lines = []
    for line in text.splitlines():
        series = line.rpartition(" ")[0]
        name = series.partition("{")[0].removeprefix("mariner_group_")
        key = f"{name}_{series[-3]}" if "member=" in series else name
        lines.append(f"{series} {values.pop(key)}" if key in values else line)
    assert not values
    return "\n".join([*lines, ""])


def view_of(text: str, status: Status = Status.STANDBY) -> GatewayView:
    view = GatewayView("north")
    view.on_answer(status, time.monotonic(), 0)
    view.on_scrape(parse(text, time.monotonic()), 0)
    return view


def problems(view: GatewayView) -> list[Problem]:
    return find_problems(view, 0, time.monotonic())


def test_a_follower_is_no_problem_while_another_one_is_active() -> None:
    view = view_of(WELL)
    assert problems(view) == []
    standby = Problem(True, "status STANDBY: nothing can be registered")
    assert find_problems(view, 0, time.monotonic() + limits.OLD_METRICS_S) != []
    assert problems(view_of(with_values(WELL, member_active_a=0))) == [
        standby,
        Problem(True, "no member of group plant is active"),
    ]
    assert problems(view_of(with_values(WELL, silent_seconds=31))) == [
        standby,
        Problem(True, "the log of group plant has not changed for 31 s"),
    ]
    assert problems(view_of(with_values(WELL, active=1))) == [standby]
    assert problems(view_of(with_values(WELL, active=1), Status.OPERATIONAL)) == []


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"member_seen_seconds_b": 121}, "member b of group plant has not been seen for 2 min"),
        (
            {"member_lag_seconds_b": 61},
            "member b of group plant is 61 s, 7 records behind",
        ),
        (
            {"member_lag_records_b": 10_001},
            "member b of group plant is 250 ms, 10 k records behind",
        ),
        ({"log_records": 100_001}, "the log of group plant holds 100,001 records"),
    ],
)
def test_what_is_wrong_is_told(values: dict[str, float], text: str) -> None:
    assert problems(view_of(with_values(WELL, **values))) == [Problem(False, text)]


async def test_its_members_are_shown_the_worst_first() -> None:
    view = view_of("mariner_store_writable 1.0\n", Status.OPERATIONAL)
    with Client(ui.page("/group")):
        panel = OverviewPanel(view, [view])
    group = panel._group
    await panel.refresh()
    assert not group._card.visible
    view.on_scrape(parse(with_values(WELL, member_lag_seconds_b=75), time.monotonic()), 0)
    await panel.refresh()
    assert group._card.visible
    figures = {title: i._value.text for title, i in group._figures.items()}
    assert figures == {
        "name": "plant",
        "this gateway": "follower",
        "epoch": "7",
        "last handover": texts.UNKNOWN,
        "took over": "2",
        "records in the log": "300",
        "log changed": "500 ms ago",
    }
    b, a = group._members._table.rows
    told = "is 75 s, 7 records behind"
    assert [b[f"column{i}"] for i in range(7)] == [
        *("b", "▲ follower", told, "1,234,560", "7", "75 s", "750 ms ago"),
    ]
    assert (b["style"], a["style"]) == ("console-row-warning", "")
    assert [a[f"column{i}"] for i in range(4)] == ["a", "ACTIVE", "", "1,234,567"]
    assert not group._form.visible


async def test_the_active_one_steps_down_when_it_is_confirmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[StepDownRequest] = []
    answers: list[StepDownAnswer | ControlError] = [
        StepDownAnswer("b", 8, 0.2),
        ControlError("no other member became active"),
    ]
    is_confirmed = False

    async def confirm(question: str, *_: str) -> bool:
        assert question == "Have north step down?"
        return is_confirmed

    async def step_down(request: StepDownRequest) -> StepDownAnswer:
        asked.append(request)
        answer = answers.pop(0)
        if isinstance(answer, ControlError):
            raise answer
        return answer

    monkeypatch.setattr(parts, "is_confirmed", confirm)
    view = view_of(with_values(WELL, active=1), Status.OPERATIONAL)
    with Client(ui.page("/step-down")):
        group = OverviewPanel(view, [view], "anna", step_down)._group
    group.refresh(is_old=False)
    assert group._form.visible
    await group._step_down()
    assert asked == []
    is_confirmed = True
    await group._step_down()
    assert asked == [StepDownRequest("anna")]
    assert group._done.text == "Done: member b is active after 200 ms"
    await group._step_down()
    assert (group._refusal.text, group._done.text) == ("no other member became active", "")
    view.on_scrape(parse(WELL, time.monotonic()), 0)
    group.refresh(is_old=False)
    assert not group._form.visible


async def test_a_real_gateway_is_asked_and_knows_who_asks(
    tmp_path: Path,
    postgresql: Cluster,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO, "audit")
    monkeypatch.setattr(group_limits, "STEP_DOWN_S", 0.2)
    dsn, http = postgresql.dsn(), {"host": "127.0.0.1", "port": 0}
    await make_group(dsn, "watched")
    async with member_gateway(tmp_path, dsn, "a", "watched", http=http) as gateway:
        StatusReport(gateway)
        assert gateway.http is not None
        config = WatchedGateway(
            "north",
            "127.0.0.1",
            "app",
            gateway.mariner.port,
            token="secret",
            metrics=f"http://127.0.0.1:{gateway.http.port}/metrics",
            control=tmp_path / "a" / "control.sock",
        )
        async with Watcher(config) as watcher:
            view = watcher.view
            await until(lambda: view.scrape and view.scrape.value("mariner_group_active") == 1)
            with pytest.raises(ControlError, match="member 'a' is active again"):
                await watcher.request_step_down(StepDownRequest("anna"))
    [asked] = [i.__dict__ for i in caplog.records if i.msg == "step down"]
    assert (asked["member"], asked["epoch"], asked["operator"]) == ("a", 1, "anna")
