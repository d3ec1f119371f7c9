"""An engine and what it is asked to register."""

from collections.abc import Sequence
from itertools import zip_longest

from eventer_bridge.backends.request_keys import RequestKey
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.core.base import Observer
from eventer_bridge.core.engine import Engine
from eventer_bridge.model import JsonPayload, RegisterEvent, Source, SourceType, Status
from eventer_bridge.packed import Batch, batch_of

SOURCE = Source(SourceType.CONNECTION, 1)


def register_event(*segments: str, value: object = 1) -> RegisterEvent:
    return RegisterEvent(segments, None, JsonPayload.of(value))


async def register(core: Engine, *events: RegisterEvent) -> Batch:
    session = core.register(SOURCE, events)
    await session.committed
    return session


def submit(
    core: Engine,
    requests: Sequence[Sequence[RegisterEvent]],
    keys: Sequence[RequestKey | None] = (),
    quota: TypeQuota | None = None,
) -> list[Batch]:
    """Register requests together."""
    batches = [i if isinstance(i, Batch) else batch_of(i, core.types) for i in requests]
    for batch, key in zip_longest(batches, keys):
        batch.source, batch.quota, batch.key = SOURCE, quota, key
    core.submit(batches)
    return batches


def refusal(batch: Batch) -> BaseException | None:
    """Why a batch was refused already; None: it was not."""
    return batch.committed.exception() if batch.committed.done() else None


class Recorder(Observer):
    """An observer that remembers what it was told."""

    def __init__(self) -> None:
        self.sessions: list[tuple[int, bool]] = []
        self.statuses: list[Status] = []

    def on_session(self, session: Batch, persisted: bool) -> None:
        self.sessions.append((session.events[0].id.session, persisted))

    def on_status(self, status: Status) -> None:
        self.statuses.append(status)
