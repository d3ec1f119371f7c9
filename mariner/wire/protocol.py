"""State of a Mariner connection, without I/O (docs/protocol.md).

A connection is CONNECTING until the client's ``init_req``, INITIATING until the server's
``init_res``, then OPEN on success, else CLOSED. One table, shared by both roles, defines who may
send which messages in each state; violations are a ``LocalProtocolError`` if ours, a
``RemoteProtocolError`` if the peer's:

==========  ====================================  =====================================
state       client → server                       server → client
==========  ====================================  =====================================
CONNECTING  init_req
INITIATING                                        init_res
OPEN        register_req query_req ping_req       status events register_res query_res
            ping_res events_ack                   ping_req ping_res
                                                  up_to_date gap cursor_lost
CLOSED
==========  ====================================  =====================================

Until it is OPEN, a connection accepts only small messages.
"""

import enum
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import msgspec

from eventer_bridge import limits as core_limits
from eventer_bridge.net import framing
from eventer_bridge.net import limits as net_limits
from eventer_bridge.packed import Batch, TypeTable
from eventer_bridge.slices import Steps
from mariner import limits
from mariner.errors import ContractError, LocalProtocolError, RemoteProtocolError
from mariner.wire import codec
from mariner.wire import messages as wire
from mariner.wire.large import decode as decode_large


class Role(enum.Enum):
    """An end of the connection."""

    CLIENT = "client"
    SERVER = "server"


class State(enum.Enum):
    """See the module."""

    CONNECTING = "before init_req"
    INITIATING = "before init_res"
    OPEN = "after init"
    CLOSED = "closed"


# for each message: until Python 3.12, members of an enumeration are looked up slowly
_OPEN: Final = State.OPEN
_CLOSED: Final = State.CLOSED

_MAY_SEND: Final[dict[tuple[Role, State], frozenset[type[Any]]]] = {
    (Role.CLIENT, State.CONNECTING): frozenset({wire.InitReq}),
    (Role.SERVER, State.INITIATING): frozenset({wire.InitRes}),
    (Role.CLIENT, State.OPEN): frozenset(
        (wire.RegisterReq, Batch, wire.QueryReq, wire.PingReq, wire.PingRes, wire.EventsAck)
    ),
    (Role.SERVER, State.OPEN): frozenset(
        {
            *(wire.StatusMsg, wire.EventsMsg, wire.RegisterRes, wire.QueryRes),
            *(wire.PingReq, wire.PingRes, wire.UpToDate, wire.Gap, wire.CursorLost),
        }
    ),
}
"""What is not in it, may not be sent."""


class RefusedRegister(msgspec.Struct, frozen=True, gc=False):
    """A ``register_req`` that the contract rejects (JSON pointer and reason), to be answered."""

    register_id: int
    error: str


class LargeMessage(msgspec.Struct, frozen=True, gc=False):
    """A message that takes long to decode (:meth:`MarinerProtocol.decode_large`)."""

    data: bytes


Received: TypeAlias = wire.Message | Batch | RefusedRegister | LargeMessage


class MarinerProtocol:
    """One end of a connection; the bounds of messages are before the state is OPEN, and then.

    Attributes:
        types: of the batches that a server gets in place of registrations (``codec.read``).
        large_bytes: size above which a server gets a :class:`LargeMessage`.
        read_bytes: size up to which it gets a batch all the same, if the message is a usual one.
    """

    __slots__ = (
        "_batch_bytes",
        "_decoder",
        "_is_batch",
        "_max_frame_bytes",
        "_may_send",
        "_messages",
        "_peer_may_send",
        "_peer_role",
        "_role",
        "_state",
        "large_bytes",
        "read_bytes",
        "types",
    )

    def __init__(
        self,
        role: Role,
        *,
        max_init_frame_bytes: int = net_limits.MAX_FIRST_FRAME_BYTES,
        max_frame_bytes: int | None = None,
    ) -> None:
        is_server = role is Role.SERVER
        most = net_limits.MAX_FRAME_BYTES if is_server else net_limits.MAX_ANSWER_FRAME_BYTES
        self.large_bytes = limits.LARGE_FRAME_BYTES
        self.read_bytes = limits.READ_FRAME_BYTES
        self.types: TypeTable | None = None
        self._role = role
        self._peer_role = Role.CLIENT if is_server else Role.SERVER
        self._set_state(State.CONNECTING)
        self._is_batch = False  # messages that are cut have not been looked at together
        self._messages: list[Received] = []  # decoded, but not taken
        self._batch_bytes = 0  # of these, and of those taken before them
        self._max_frame_bytes = most if max_frame_bytes is None else max_frame_bytes
        self._decoder = framing.FrameDecoder(max_init_frame_bytes, content="a JSON message")

    @property
    def state(self) -> State:
        """Current state."""
        return self._state

    @property
    def buffered_bytes(self) -> int:
        """Bytes of messages that are incomplete or not taken yet."""
        n_bytes = self._decoder.buffered_bytes
        return n_bytes + self._batch_bytes if self._messages else n_bytes

    def receive_data(self, data: bytes) -> None:
        """Buffer bytes from the peer for :meth:`next_message`."""
        if self._state is not _CLOSED:
            self._decoder.feed(data)

    def discard(self) -> None:
        """Drop buffered bytes: the connection is gone."""
        self._messages = []
        self._decoder.discard()

    def receive_eof(self) -> None:
        """The peer sends no more; buffered messages can still be taken and answered.

        Raises RemoteProtocolError if the stream ended within a message; the state is CLOSED then.
        If complete messages precede it, :meth:`next_message` raises the error after them.
        """
        if self._state is State.CLOSED:
            return
        try:
            self._decoder.feed_eof()
        except RemoteProtocolError:
            if not self._messages:
                self._set_state(State.CLOSED)
                raise

    def next_message(self) -> Received | None:
        """Take the next message of the peer; as :meth:`next_messages`, None if there is none."""
        messages = self.next_messages()
        return messages.pop(0) if messages else None

    def next_messages(self) -> list[Received]:
        """The next messages of the peer: several, if they are small and came together.

        Servers get a :class:`LargeMessage` if it is large; none: more bytes are needed. The caller
        removes those that it takes, from the beginning; the others come again before what follows.
        Raises RemoteProtocolError if the peer broke the protocol; the state is CLOSED then.
        """
        messages = self._messages
        if messages or self._state is _CLOSED:
            return messages
        try:
            decoder = self._decoder
            if not decoder.frames:
                self._is_batch = True
            frame = decoder.next_frame()
            if frame is None:
                return messages
            if decoder.frames and self._is_batch and self._state is _OPEN:
                self._decode_batch(frame)
                if messages:
                    return messages
            message: Received
            if len(frame) > self.large_bytes and self._role is Role.SERVER:
                message = self._read_large(frame)
            else:
                message = codec.read(frame, self.types)
                if type(message) not in self._peer_may_send:
                    raise RemoteProtocolError(self._not_allowed(self._peer_role, type(message)))
                if self._state is not _OPEN and not isinstance(message, Batch):
                    self._on_init(message)
        except ContractError as e:
            message = self._refused(e)
        except RemoteProtocolError:
            self._set_state(State.CLOSED)
            raise
        messages.append(message)
        return messages

    def _decode_batch(self, first: bytes) -> None:
        """Decode messages before the first that has to be dealt with by itself."""
        self._is_batch = False  # behind it one by one: else each one could cost as much as all
        if self.large_bytes < net_limits.BATCH_BYTES:  # one of them may be large
            return
        decoder, messages, may_send = self._decoder, self._messages, self._peer_may_send
        messages += codec.read_several([first, *decoder.frames], self.types)
        if not may_send.issuperset(map(type, messages)):
            del messages[next(i for i, m in enumerate(messages) if type(m) not in may_send) :]
        if messages:
            self._batch_bytes = len(first) + decoder.take(len(messages) - 1)

    def _read_large(self, frame: bytes) -> Batch | LargeMessage:
        if self.types is not None and len(frame) <= self.read_bytes:
            batch = codec.read_batch(frame, self.types, core_limits.MANY_NEW_TYPES)
            if batch is not None and len(batch) <= core_limits.LARGE_SESSION_EVENTS:
                return batch
        return LargeMessage(frame)

    def decode_large(self, large: LargeMessage) -> Steps[wire.Message | Batch | RefusedRegister]:
        """Decode a message in steps; raises as :meth:`next_message`."""
        try:
            message: wire.Message | Batch
            if self.types is not None and len(large.data) > limits.LARGE_FRAME_BYTES:
                message = yield from decode_large(large.data, self.types)
            else:
                message = codec.read(large.data, self.types)
            if type(message) not in self._peer_may_send:
                raise RemoteProtocolError(self._not_allowed(self._peer_role, type(message)))
        except ContractError as e:
            return self._refused(e)
        except RemoteProtocolError:
            self._set_state(State.CLOSED)
            raise
        return message

    def _refused(self, error: ContractError) -> RefusedRegister:
        """The refusal of an invalid message; raises its error if it cannot be answered."""
        if error.register_id is None or wire.RegisterReq not in self._peer_may_send:
            self._set_state(State.CLOSED)
            raise error
        return RefusedRegister(error.register_id, str(error))

    def send(self, message: wire.Message) -> bytes:
        """A message, framed; raises LocalProtocolError if it may not be sent in this state."""
        data = self.send_encoded(type(message), codec.encode(message))
        if self._state is not State.OPEN:
            self._on_init(message)
        return data

    def send_encoded(self, message_type: type[wire.Message], message: bytes) -> bytes:
        """As :meth:`send`, of an encoded message."""
        if message_type not in self._may_send:
            raise LocalProtocolError(self._not_allowed(self._role, message_type))
        return framing.encode_frame(message)

    def send_frames(self, message_type: type[wire.Message], frames: bytes) -> bytes:
        """As :meth:`send_encoded`, of messages that are framed already, joined."""
        if message_type not in self._may_send:
            raise LocalProtocolError(self._not_allowed(self._role, message_type))
        return frames

    def send_parts(self, message_type: type[wire.Message], parts: Sequence[bytes]) -> list[bytes]:
        """As :meth:`send_encoded`, of a message in parts, which are not joined."""
        if message_type not in self._may_send:
            raise LocalProtocolError(self._not_allowed(self._role, message_type))
        return framing.frame_parts(parts)

    def _set_state(self, state: State) -> None:
        self._state = state
        self._may_send = _MAY_SEND.get((self._role, state), frozenset())
        self._peer_may_send = _MAY_SEND.get((self._peer_role, state), frozenset())

    def _on_init(self, message: wire.Message) -> None:
        """Change state after the one message allowed before the state is OPEN."""
        if isinstance(message, wire.InitReq):
            self._set_state(State.INITIATING)
        elif isinstance(message, wire.InitRes) and message.success:
            self._set_state(State.OPEN)
            self._decoder.max_frame_bytes = self._max_frame_bytes
        else:
            self._set_state(State.CLOSED)

    def _not_allowed(self, role: Role, message_type: type[Any]) -> str:
        name = wire.name_of(message_type)
        if message_type is wire.InitReq and role is Role.CLIENT:
            return "second init_req, expected one at the beginning only"
        return f"{name} from the {role.value} is not allowed {self._state.value}"
