"""``mariner group step-down``: another member of a group is to be active."""

from pathlib import Path

import click

from mariner.cli import output
from mariner.cli.run import errors
from mariner.cli.target import find_gateway, gateway_option
from mariner.cli.values import duration
from mariner.gateway import group_requests
from mariner.gateway.group_requests import StepDownRequest


@click.command("step-down")
@gateway_option
def step_down(path: Path) -> None:
    """Have a running gateway stop being the active member of its group.

    It answers what it took on, and another member becomes active, within tenths of a second; so
    nothing is refused when it is stopped afterwards. If no other member becomes active within
    `takeover_s` and 2 s, this one is again.

    Exit code 0: another member is active; 1: none became active, this one is not, or there is no
    gateway; 2: the configuration cannot be read, or has neither a store nor `control`, or the
    gateway belongs to no group.
    """
    with errors():
        socket, to = find_gateway(path)
        answer = group_requests.ask(socket, StepDownRequest(), to)
    after = duration(answer.after_s)
    output.write_text(f"member {answer.active!r} is active after {after}, epoch {answer.epoch:,}")
