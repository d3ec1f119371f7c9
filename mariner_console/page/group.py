"""The group of a gateway: its members, the worst first; who may register may have it step down.

Members are known from the metrics. It steps down over the control socket of a gateway on this
machine: that is asked twice, and kept with the name of the user in the log, and in the audit trail
of the gateway.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeAlias

from nicegui import ui

from eventer_bridge.errors import ConfigurationError, ControlError
from mariner.gateway.group_requests import StepDownAnswer, StepDownRequest
from mariner_console import texts
from mariner_console.page import parts
from mariner_console.page.parts import Columns, TextTable
from mariner_console.view import GatewayView, Scrape, member_problem

mlog = logging.getLogger(__name__)

StepDownCb: TypeAlias = Callable[[StepDownRequest], Awaitable[StepDownAnswer]]
"""Has the gateway step down; raises ConfigurationError or ControlError if another one is not active
afterwards."""


class GroupCard:
    """See the module; it is hidden while the gateway is known to belong to no group.

    ``step_down`` is for the user ``writer``; None: they may not, or there is no control socket.
    """

    def __init__(self, view: GatewayView, writer: str | None, step_down: StepDownCb | None) -> None:
        self._view = view
        self._writer = writer
        self._ask = step_down
        with parts.card("Group") as self._card:
            with ui.element("div").classes("console-figures"):
                self._figures = {title: parts.Figure(title) for title in _figures(None)}
            self._members = TextTable(
                _MEMBERS,
                empty="No member has told of itself yet.",
                style=lambda i: "" if i.problem is None else "console-row-warning",
            )
            with ui.element("div").classes("console-form") as self._form:
                ui.button("Step down …", on_click=self._step_down)
                parts.note("Another member becomes active; then this one can be stopped.")
            self._refusal = parts.failure()
            self._done = ui.label("").classes("console-well").props("role=status")
        self._card.set_visibility(False)

    def refresh(self, *, is_old: bool) -> None:
        """Show what is known now."""
        scrape = self._view.scrape
        group = scrape and scrape.text("mariner_group_active", "group")
        self._card.set_visibility(group is not None)
        if scrape is None or group is None:
            return
        parts.show_old(self._card, is_old)
        for title, text in _figures(scrape).items():
            self._figures[title].set(text, is_old=is_old)
        found = parts.rows_by(scrape, "member", "group_member_active") or []
        members = [_Member(i, member_problem(scrape, i.label)) for i in found]
        self._members.set(sorted(members, key=lambda i: (i.problem is None, -i.lag_s)))
        is_active = bool(scrape.value("mariner_group_active"))
        self._form.set_visibility(self._ask is not None and is_active)

    async def _step_down(self) -> None:
        at = self._view.name
        question = f"Have {texts.shown(at)} step down?"
        self._say("", "")
        what = "Another member of its group becomes active; if none does, this one is again."
        if self._ask is None or not await parts.is_confirmed(question, what, "Step down"):
            return
        extra = {"user": self._writer, "gateway": at}
        try:
            answer = await self._ask(StepDownRequest(self._writer or ""))
        except (ConfigurationError, ControlError) as e:
            mlog.warning("no other member became active", extra={**extra, "reason": str(e)})
            self._say(str(e), "")
            return
        mlog.info("stepped down", extra={**extra, "active": answer.active})
        after = texts.of_seconds(answer.after_s)
        self._say("", f"Done: member {texts.shown(answer.active)} is active after {after}")

    def _say(self, refusal: str, done: str) -> None:
        self._refusal.set_text(texts.shown(refusal, 400))
        self._done.set_text(done)


class _Member(NamedTuple):
    """A member, and what is wrong with it."""

    row: parts.MetricRow
    problem: str | None

    @property
    def lag_s(self) -> float:
        """How far it is behind."""
        return self.row.by("group_member_lag_seconds").get(self.row.label, 0.0)

    @property
    def state(self) -> str:
        """In a word."""
        is_active = self.row.by("group_member_active").get(self.row.label)
        return f"{'' if self.problem is None else '▲ '}{_state(is_active)}"


def _state(is_active: float | None) -> str:
    return "ACTIVE" if is_active else "follower"


def _of(name: str, show: Callable[[float | None], str]) -> Callable[[_Member], str]:
    column = parts.metric(f"group_member_{name}", show)
    return lambda member: column(member.row)


_MEMBERS: Final[Columns[_Member]] = {
    "Member": lambda i: texts.shown(i.row.label),
    "State": lambda i: i.state,
    "What is wrong": lambda i: texts.shown(i.problem or ""),
    "Position": _of("position", lambda i: texts.UNKNOWN if i is None else f"{i:,.0f}"),
    "Records behind": _of("lag_records", texts.of_number),
    "Behind": _of("lag_seconds", texts.of_seconds),
    "Last seen": _of("seen_seconds", lambda i: f"{texts.of_seconds(i)} ago"),
}


def _figures(scrape: Scrape | None) -> dict[str, str]:
    def value(name: str) -> float | None:
        return scrape and scrape.value(f"mariner_group_{name}")

    def ago(seconds: float | None) -> str:
        return texts.UNKNOWN if seconds is None else f"{texts.of_seconds(max(0.0, seconds))} ago"

    group = scrape and scrape.text("mariner_group_active", "group")
    changed_s = value("changed_timestamp_seconds")
    is_active = value("active")
    return {
        "name": texts.UNKNOWN if group is None else texts.shown(group, 40),
        "this gateway": texts.UNKNOWN if is_active is None else _state(is_active),
        "epoch": texts.of_number(value("epoch")),
        "last handover": ago(changed_s and time.time() - changed_s),
        "took over": texts.of_number(value("takeovers_total")),
        "records in the log": texts.of_number(value("log_records")),
        "log changed": ago(value("silent_seconds")),
    }
