"""An engine and what it is asked to register."""

from eventer_bridge.core.engine import Engine
from eventer_bridge.core.session import Session
from eventer_bridge.model import JsonPayload, RegisterEvent, Source, SourceType, Status

SOURCE = Source(SourceType.CONNECTION, 1)


def register_event(*segments: str, value: object = 1) -> RegisterEvent:
    return RegisterEvent(segments, None, JsonPayload.of(value))


async def register(core: Engine, *events: RegisterEvent) -> Session:
    session = core.register(SOURCE, events)
    await session.committed
    return session


class Recorder:
    """An observer that remembers what it was told."""

    def __init__(self) -> None:
        self.sessions: list[tuple[int, bool]] = []
        self.statuses: list[Status] = []

    def on_session(self, session: Session, persisted: bool) -> None:
        self.sessions.append((session.events[0].id.session, persisted))

    def on_status(self, status: Status) -> None:
        self.statuses.append(status)
