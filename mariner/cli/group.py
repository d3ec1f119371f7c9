"""``mariner group``: makes a group, shows it, and forgets a member, while gateways run or not.

:mod:`~mariner.cli.step_down` is of a running one.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from eventer_bridge.errors import ConfigurationError
from eventer_bridge.group import statements
from eventer_bridge.group.dsn import require_driver
from eventer_bridge.group.log import LogState, MemberState
from eventer_bridge.model import Timestamp, printable
from mariner import limits
from mariner.cli import output
from mariner.cli.run import EXIT_FAILED, CommandError, errors, run
from mariner.cli.status import members
from mariner.cli.step_down import step_down
from mariner.cli.target import JSON_OPTION, conf_option
from mariner.gateway.status import MemberStatus

if TYPE_CHECKING:
    from eventer_bridge.group.postgresql import PostgresqlLog
    from mariner.gateway.config import CoreConfig, GroupConfig

_conf_option = conf_option("Configuration file of a gateway of the group.")


@click.group()
def group() -> None:
    """Make a group of gateways with one commit log, and look after it.

    These commands ask the log itself, whether gateways run or not; but step-down, which asks the
    gateway.
    """


group.add_command(step_down)


@group.command()
@_conf_option
@click.option(
    "--print-sql",
    is_flag=True,
    help="Only print the SQL that makes the tables, and gives the role of the configuration the"
    " rights that it needs: for an administrator to run, if that role may make no tables.",
)
def init(path: Path, *, print_sql: bool) -> None:
    """Make the group that the configuration names, once, before its first gateway starts.

    Makes the tables, too, if the database has none. Several groups may share a database. The first
    gateway that becomes active brings its store; others start with an empty one, or a backup.

    Exit code 0: made; 1: there is one with this name, or the log cannot be used; 2: the
    configuration cannot be read, or has no group.
    """
    core, its = _load(path)
    if print_sql:
        output.write_text(statements.set_up(its.log.user or "mariner").rstrip())
        return
    group_id = run(_create(core, its))
    name, place = printable(its.name), its.log.place
    output.write_text(f"made: group {name} ({group_id}), for server {core.server_id}, at {place}")


async def _create(core: "CoreConfig", its: "GroupConfig") -> str:
    from eventer_bridge.group import postgresql  # noqa: PLC0415  # asyncpg is an extra

    return await postgresql.create_group(
        its.log,
        its.name,
        core.server_id,
        limits.GROUP_TIMEOUT_S,
        unreplicated=its.unreplicated,
    )


class GroupAnswer(msgspec.Struct):
    """A group, as ``--json`` has it; ``since`` the last member became active, or released it."""

    name: str
    group_id: str
    server_id: int
    epoch: int
    active: str | None
    since: str
    position: int
    acknowledged: int
    trimmed: int
    members: list[MemberStatus]


@group.command()
@_conf_option
@JSON_OPTION
def status(path: Path, *, is_json: bool) -> None:
    """Show a group: who is active, and how far each member is, as it last told.

    Exit code 0: shown; 1: there is no such group, or the log cannot be used; 2: the configuration
    cannot be read, or has no group.
    """
    _, its = _load(path)
    state, members = run(_ask(its))
    answer = _answer(its.name, state, members)
    if is_json:
        output.write_json(answer)
    else:
        output.write_rich(_render(answer, its.log.place))


@group.command()
@_conf_option
@click.argument("member")
def remove(path: Path, member: str) -> None:
    """Forget a member that will not come back, so that the log keeps nothing for it.

    A gateway that runs as this member is one again a moment later.

    Exit code 0: removed; 1: it was no member, or the log cannot be used; 2: the configuration
    cannot be read, or has no group.
    """
    _, its = _load(path)
    if not run(_remove(its, member)):
        raise CommandError(f"group {its.name} has no member {member!r}", EXIT_FAILED)
    output.write_text(f"removed: {printable(member)}")


def _load(path: Path) -> "tuple[CoreConfig, GroupConfig]":
    from mariner.gateway import config_file  # noqa: PLC0415  # slow to import

    with errors():
        core = config_file.load(path).event_core
        if core is None or core.group is None:
            raise ConfigurationError(f"{path}: event_core.group: missing")
        require_driver()
        return core, core.group


@asynccontextmanager
async def _opened(its: "GroupConfig") -> "AsyncIterator[PostgresqlLog]":
    from eventer_bridge.group.postgresql import PostgresqlLog  # noqa: PLC0415  # asyncpg is an extra

    log = PostgresqlLog(its.log, its.name, limits.GROUP_TIMEOUT_S, unreplicated=its.unreplicated)
    async with log:
        yield log


async def _ask(its: "GroupConfig") -> tuple[LogState, list[MemberState]]:
    async with _opened(its) as log:
        return await log.state(), await log.members()


async def _remove(its: "GroupConfig", member: str) -> bool:
    async with _opened(its) as log:
        await log.state()  # whether there is such a group
        return await log.remove_member(member)


def _answer(name: str, state: LogState, members: list[MemberState]) -> GroupAnswer:
    return GroupAnswer(
        name,
        state.group_id,
        state.server_id,
        state.epoch,
        state.active,
        Timestamp.from_float(state.since_s).to_iso(),
        state.position,
        state.acknowledged,
        state.trimmed,
        [
            # the active one has what it wrote
            MemberStatus(i.name, True, i.position, 0, 0.0, i.seen_s)
            if i.name == state.active
            else MemberStatus(
                i.name, False, i.position, max(0, state.position - i.position), i.lag_s, i.seen_s
            )
            for i in members
        ],
    )


def _render(answer: GroupAnswer, place: str) -> RenderableType:
    summary = Table.grid(padding=(0, 2))
    summary.add_column(style="bold")
    summary.add_row("group", Text(printable(f"{answer.name}, at {place}")))
    if answer.active is not None:
        active = Text(printable(f"{answer.active}, epoch {answer.epoch}, since {answer.since}"))
    else:
        since = f" since {answer.since}" if answer.epoch else ""
        active = Text(f"nobody{since}", "red")
    summary.add_row("active", active)
    kept = f"{answer.position - answer.trimmed:,} kept"
    summary.add_row("records", f"{answer.position:,}, {kept}")
    return Group(summary, "", members(answer.members))
