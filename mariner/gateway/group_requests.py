"""The request of an operator that the active member of a group steps down.

:func:`answer` runs on the event loop's thread of the gateway, :func:`ask` in another process.
"""

import asyncio
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from eventer_bridge import limits as core_limits
from eventer_bridge.control import client
from eventer_bridge.control.client import Addressee
from eventer_bridge.errors import ConfigurationError, ControlError
from eventer_bridge.group import limits as group_limits
from mariner import limits

if TYPE_CHECKING:
    from eventer_bridge.group.member import GroupMember
    from mariner.gateway.counts import Counted  # slow to import, and this is for commands, too

audit = logging.getLogger("audit")

REQUEST: Final = "step_down"


class StepDownRequest(msgspec.Struct, frozen=True):
    """A request; ``operator`` is for the audit trail, as the sender says."""

    operator: Annotated[str, msgspec.Meta(max_length=core_limits.MAX_NAME_CHARACTERS)] = ""


class StepDownAnswer(msgspec.Struct, frozen=True):
    """Another member became active, ``after_s``, in an ``epoch``."""

    active: str
    epoch: int
    after_s: float


def ask(socket: Path, request: StepDownRequest, to: Addressee) -> StepDownAnswer:
    """Ask a running gateway through its control socket; blocks.

    Raises ControlError if it is not active, no other member became active, or there is no answer;
    ConfigurationError if it belongs to no group.
    """
    return client.request(
        socket,
        REQUEST,
        msgspec.to_builtins(request),
        StepDownAnswer,
        to=to,
        what=f"{socket}: the gateway",
        timeout_s=limits.STEP_DOWN_S + limits.STATUS_TIMEOUT_S,
    )


# --- in the gateway -------------------------------------------------------------------------


async def answer(gateway: "Counted", argument: Any) -> Any:
    """Answer a request (``control.server.HandlerCb``); raises as :func:`ask`."""
    try:
        request = msgspec.convert(argument, StepDownRequest)
    except msgspec.ValidationError as e:
        raise ConfigurationError(f"{REQUEST}: {e}") from None
    member = gateway.member
    if member is None:
        raise ConfigurationError("event_core.group: missing: this gateway belongs to no group")
    if not member.is_active or member.state is None:
        active = None if member.state is None else member.state.active
        is_another = active not in {None, member.name}
        others = f"member {active!r} is" if is_another else "nor is another one"
        raise ControlError(f"member {member.name!r} is not active, {others}")
    epoch = member.state.epoch
    extra = {"member": member.name, "epoch": epoch}
    if request.operator:
        extra["operator"] = request.operator
    audit.info("step down", extra=extra)
    member.step_down()
    return msgspec.to_builtins(await _next_active(member, epoch))


async def _next_active(member: "GroupMember", epoch: int) -> StepDownAnswer:
    began_s = time.monotonic()
    while member.is_open:
        state, after_s = member.state, time.monotonic() - began_s
        if state is not None and state.epoch > epoch and state.active is not None:
            if state.active != member.name:
                return StepDownAnswer(state.active, state.epoch, after_s)
            raise ControlError(
                f"no other member became active within {after_s:.1f} s:"
                f" member {member.name!r} is active again"
            )
        if after_s > limits.STEP_DOWN_S:
            raise ControlError(
                f"no member has become active within {after_s:.0f} s: `mariner status` says why"
            )
        await asyncio.sleep(group_limits.POLL_S)
    raise ControlError("the gateway is stopping")
