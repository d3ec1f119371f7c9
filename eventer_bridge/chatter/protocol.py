"""State of a chatter connection, without I/O (003): conversations, dialect, pings.

Both peers are equal: each begins and ends conversations, and answers the other's pings. A
violation by the peer is a ``RemoteProtocolError`` (after which nothing more is read), one of our
own a ``LocalProtocolError``:

- The first message of a conversation comes from its owner, and names itself as ``first``.
- Any other belongs to an open conversation, and comes from the holder of the token.
- Identifiers are counters; a peer's may arrive out of order: today's implementations number a
  message before queueing it.
"""

import enum
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from typing_extensions import override

from eventer_bridge.chatter import codec
from eventer_bridge.chatter.codec import Dialect, Msg
from eventer_bridge.errors import LimitError, LocalProtocolError, RemoteProtocolError
from eventer_bridge.net import limits as net_limits
from eventer_bridge.net.framing import FrameDecoder, encode_frame, encode_frames, frame_parts


class Turn(enum.Enum):
    """Holder of the token."""

    OURS = "ours"
    PEERS = "the peer's"
    ENDED = "ended"


# for each message: until Python 3.12, members of an enumeration are looked up slowly
OURS: Final = Turn.OURS
PEERS: Final = Turn.PEERS
ENDED: Final = Turn.ENDED


class Conversation(msgspec.Struct, eq=False):
    """One conversation of a connection; only its protocol creates and changes it.

    It is an ordered, finite sequence of messages between two peers. The flags of each message, from
    either peer, pass the turn:

    ==============  ====================  =====================================
    flags           turn after a message  next sender
    ==============  ====================  =====================================
    last            ENDED                 none
    token           the other's           the receiver of that message
    neither         the same              the sender of that message
    ==============  ====================  =====================================

    Attributes:
        is_ours: whether we began it (003: we are the owner).
        turn: sender of the next message; of a new one, who began it.
        timeout_s: time limit for the peer's next message; infinite: none.
        deadline: monotonic time of that limit; infinite if no message is awaited.
        is_expired: whether the peer was too late; its further messages are dropped.
        tag: belongs to the user of the connection.
    """

    first_id: int
    is_ours: bool
    turn: Turn
    timeout_s: float
    deadline: float = math.inf
    is_expired: bool = False
    tag: Any = None

    @override
    def __repr__(self) -> str:
        owner = "ours" if self.is_ours else "the peer's"
        return f"<conversation {self.first_id}, {owner}>"

    @property
    def may_send(self) -> bool:
        """Whether we hold the token."""
        return self.turn is OURS


class Handled(enum.Enum):
    """A message that the protocol has dealt with."""

    PING = "a ping that is answered, or the answer to one"
    LATE = "a message of a conversation that expired"


class Message(msgspec.Struct, frozen=True):
    """A received message of a type, as "HatEventer.MsgInitReq"; ``data`` is SBS of that type.

    ``conversation.may_send`` is whether it is our turn now; after the last, no answer is possible.
    """

    conversation: Conversation
    type: str
    data: bytes
    is_first: bool
    is_last: bool


class ChatterProtocol:
    """One end of a connection.

    Args:
        dialect: of our messages; None: the peer's, known from its first message.
        max_frame_bytes: largest message accepted after the peer's first one that is no ping, and
        max_first_frame_bytes: up to that one.
        conversation_timeout_s: time limit for the peer to continue a conversation.
        clock: monotonic seconds.

    Attributes:
        unsent_bytes: size of the next :meth:`parts_to_send`.
        has_begun: whether the peer has sent a message other than a ping.
        awaiting_reply: the peer's conversations in which it is our turn.
    """

    __slots__ = (
        "_clock",
        "_conversation_timeout_s",
        "_decoder",
        "_is_closed",
        "_last_id",
        "_max_frame_bytes",
        "_n_peeked",
        "_ours",
        "_ping",
        "_ping_type",
        "_pong_type",
        "_theirs",
        "_unsent",
        "awaiting_reply",
        "dialect",
        "has_begun",
        "n_pongs",
        "unsent_bytes",
    )

    def __init__(
        self,
        dialect: Dialect | None,
        *,
        max_frame_bytes: int,
        max_first_frame_bytes: int = net_limits.MAX_FIRST_FRAME_BYTES,
        conversation_timeout_s: float = net_limits.CONVERSATION_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ping_type = self._pong_type = ""
        self._set_dialect(dialect)
        self._max_frame_bytes = max_frame_bytes
        self._conversation_timeout_s = conversation_timeout_s
        self._clock = clock
        self._decoder = FrameDecoder(max_first_frame_bytes, content="a chatter message")
        self.has_begun = False
        self._is_closed = False
        self._last_id = 0
        # open conversations by the identifier of their first message
        self._ours: dict[int, Conversation] = {}
        self._theirs: dict[int, Conversation] = {}
        self.awaiting_reply = 0
        self._n_peeked = 0  # messages at the beginning that were peeked at, but not taken
        self._ping: Conversation | None = None
        self._unsent: list[bytes] = []
        self.unsent_bytes = 0
        self.n_pongs = 0

    @property
    def open_conversations(self) -> int:
        """All open conversations."""
        return len(self._ours) + len(self._theirs)

    @property
    def is_full(self) -> bool:
        """Whether so many conversations await our reply that reading should pause."""
        return self.awaiting_reply >= net_limits.MAX_PEER_CONVERSATIONS

    @property
    def buffered_bytes(self) -> int:
        """Bytes of messages that are incomplete or not taken yet."""
        return self._decoder.buffered_bytes

    @property
    def has_several(self) -> bool:
        """Whether so many messages came together that :meth:`peek_requests` is worth a call."""
        return not self._n_peeked and len(self._decoder.cut()) >= net_limits.MIN_REQUESTS_TOGETHER

    @property
    def n_sent(self) -> int:
        """Number of messages sent."""
        return self._last_id

    def parts_to_send(self) -> list[bytes]:
        """Bytes for the peer, in parts, each returned once."""
        parts, self._unsent = self._unsent, []
        self.unsent_bytes = 0
        return parts

    def data_to_send(self) -> bytes:
        """Bytes for the peer, each returned once."""
        return b"".join(self.parts_to_send())

    # --- receiving ----------------------------------------------------------------------

    def receive_data(self, data: bytes) -> None:
        """Buffer bytes from the peer for :meth:`next_message`."""
        if not self._is_closed:
            self._decoder.feed(data)

    def discard(self) -> None:
        """Drop buffered bytes: the connection is gone."""
        self._decoder.discard()

    def receive_eof(self) -> None:
        """The peer sends no more; ``RemoteProtocolError``: it ended within a message.

        If complete messages precede it, :meth:`next_message` raises the error after them.
        """
        if self._is_closed:
            return
        try:
            self._decoder.feed_eof()
        except RemoteProtocolError:
            self._is_closed = True
            raise

    def next_message(self) -> Message | Handled | None:
        """The next message of the peer; None if more bytes are needed for it. Answers pings.

        Raises ``RemoteProtocolError`` if the peer broke the protocol; nothing is read from then on.
        """
        if self._is_closed:
            return None
        try:
            frame = self._decoder.next_frame()
            if frame is None:
                return None
            if self._n_peeked:
                self._n_peeked -= 1
            dialect = self.dialect
            if dialect is None:
                dialect = codec.recognise(frame)
                self._set_dialect(dialect)
            msg = codec.decode(frame, dialect)
            is_first = msg.owner and msg.id == msg.first
            if is_first:
                conversation = self._begin_by_peer(msg)
            else:
                conversation = self._conversation_of(msg)
                self._advance_by_peer(conversation, msg)
            if msg.type == self._ping_type:
                self._on_ping(conversation, msg)
                return Handled.PING
            if conversation is self._ping or msg.type == self._pong_type:
                self._on_pong(conversation, msg)
                return Handled.PING
        except RemoteProtocolError:
            self._is_closed = True
            raise
        if not self.has_begun:
            self.has_begun = True
            self._decoder.max_frame_bytes = self._max_frame_bytes
        if conversation.is_expired:
            if conversation.turn is OURS:  # it will not be continued
                self._end(conversation)
            return Handled.LATE
        return Message(conversation, msg.type, msg.data, is_first, msg.last)

    def peek_requests(self, msg_type: str, most: int) -> tuple[list[int], list[bytes]]:
        """The next messages of the peer, at most so many, if they are requests that came together.

        A request begins a conversation and awaits an answer. The first of them may be taken
        (:meth:`take_requests`); the others come by :meth:`next_message`, and not here again.
        Returns identifiers and data; nothing if there are too few to gain by it.
        """
        if not self.has_begun or self._is_closed or self._n_peeked:
            return [], []
        frames = self._decoder.cut()
        ids, data = codec.decode_requests(frames[:most], msg_type, self._check_dialect())
        self._n_peeked = len(ids)  # once: else each message could cost as much as all behind it
        if len(ids) < net_limits.MIN_REQUESTS_TOGETHER or len({*ids}) < len(ids):
            return [], []
        if not self._theirs.keys().isdisjoint(ids):
            return [], []
        return ids, data

    def take_requests(self, ids: Sequence[int]) -> list[Conversation]:
        """Take the first of :meth:`peek_requests`; returns their conversations."""
        timeout_s = self._conversation_timeout_s
        conversations = [Conversation(i, False, OURS, timeout_s) for i in ids]
        self._theirs.update(zip(ids, conversations, strict=True))
        self.awaiting_reply += len(ids)
        self._n_peeked -= len(ids)
        self._decoder.take(len(ids))
        return conversations

    def _begin_by_peer(self, msg: Msg) -> Conversation:
        first = msg.first
        if first in self._theirs:
            raise RemoteProtocolError(f"{_text(msg)} begins a conversation that is open already")
        conversation = Conversation(first, False, PEERS, self._conversation_timeout_s)
        if msg.token and not msg.last:  # most of them: a request
            conversation.turn = OURS
            self.awaiting_reply += 1
            self._theirs[first] = conversation
        else:
            self._advance_by_peer(conversation, msg)
        return conversation

    def _conversation_of(self, msg: Msg) -> Conversation:
        table = self._theirs if msg.owner else self._ours
        conversation = table.get(msg.first)
        if conversation is None:
            raise RemoteProtocolError(
                f"{_text(msg)} belongs to conversation {msg.first} of its"
                f" {'sender' if msg.owner else 'receiver'}, which never began or has ended"
            )
        if conversation.turn is not PEERS:
            raise RemoteProtocolError(
                f"{_text(msg)} belongs to {conversation!r}, whose token its sender does not hold"
            )
        return conversation

    def _advance_by_peer(self, conversation: Conversation, msg: Msg) -> None:
        if msg.last:
            self._end(conversation)
            return
        if msg.token:
            conversation.turn = OURS
            conversation.deadline = math.inf
            self.awaiting_reply += not conversation.is_ours
        elif not conversation.is_expired:
            self._expect(conversation)
        if not conversation.is_ours:
            self._theirs[conversation.first_id] = conversation
            if len(self._theirs) - self.awaiting_reply > net_limits.MAX_PEER_CONVERSATIONS:
                raise RemoteProtocolError(
                    f"more than {net_limits.MAX_PEER_CONVERSATIONS} conversations"
                    " that the peer began and does not continue"
                )

    # --- sending ------------------------------------------------------------------------

    def send(
        self,
        msg_type: str,
        data: bytes | Sequence[bytes],
        *,
        conversation: Conversation | None = None,
        last: bool = True,
        token: bool = True,
        timeout_s: float | None = None,
    ) -> Conversation:
        """Send a message as ``Connection.send``; its bytes go to :meth:`parts_to_send`."""
        if conversation is None:
            if len(self._ours) >= net_limits.MAX_OWN_CONVERSATIONS:
                raise LimitError(f"{len(self._ours)} conversations already wait for the peer")
            conversation = Conversation(self._last_id + 1, True, OURS, self._conversation_timeout_s)
        else:
            self._check_turn(conversation, msg_type)
        dialect = self._check_dialect()
        first, is_ours = conversation.first_id, conversation.is_ours
        head = self._last_id + 1, first, is_ours, token, last, msg_type
        try:
            if isinstance(data, bytes):
                self._write(codec.encode(Msg(*head, data), dialect))
            else:
                self._write_parts(codec.encode_parts(Msg(*head, b""), data, dialect))
        except ValueError as e:
            raise LocalProtocolError(str(e)) from e
        if timeout_s is not None:
            conversation.timeout_s = timeout_s
        if last:
            self._end(conversation)
            return conversation
        if token:
            self.awaiting_reply -= not conversation.is_ours
            conversation.turn = PEERS
            self._expect(conversation)
        if conversation.is_ours:
            self._ours[conversation.first_id] = conversation
        return conversation

    def end(self, conversation: Conversation) -> None:
        """End a conversation of ours, whatever the flags of its answer.

        Any further message of it is a violation by the peer.
        """
        self._end(conversation)

    def answer(
        self, conversations: Sequence[Conversation], msg_type: str, data: Sequence[bytes]
    ) -> None:
        """As :meth:`send` of the last messages of the peer's conversations, but faster.

        Raises as :meth:`send`; nothing is sent then.
        """
        theirs = self._theirs
        for i in conversations:
            if theirs.get(i.first_id) is not i or i.turn is not OURS:
                self._check_turn(i, msg_type)
                raise LocalProtocolError(f"{msg_type}: {i!r} does not wait for an answer")
        firsts = [i.first_id for i in conversations]
        try:
            messages = codec.encode_answers(
                self._last_id + 1, firsts, msg_type, data, self._check_dialect()
            )
        except ValueError as e:
            raise LocalProtocolError(str(e)) from e
        frames = encode_frames(messages)
        self._last_id += len(messages)
        self._unsent.append(frames)
        self.unsent_bytes += len(frames)
        for i in conversations:
            del theirs[i.first_id]
            i.turn = ENDED
        self.awaiting_reply -= len(conversations)

    def send_alone(self, msg_type: str, data: bytes) -> None:
        """As :meth:`send` of a message that begins and ends its conversation, but faster."""
        dialect = self._check_dialect()
        try:
            self._write(codec.encode_alone(self._last_id + 1, msg_type, data, dialect))
        except ValueError as e:
            raise LocalProtocolError(str(e)) from e

    @property
    def is_pinging(self) -> bool:
        """Whether a ping awaits its answer."""
        return self._ping is not None

    def ping(self) -> None:
        """Ping the peer, unless an earlier ping awaits its answer."""
        if self._ping is None:
            self._ping = self.send(self._ping_type, b"", last=False, timeout_s=math.inf)

    def expire(self) -> list[Conversation]:
        """Conversations that the peer did not continue in time, each reported once.

        They stay open for the peer, whose late messages are dropped.
        """
        now = self._clock()
        expired = [
            conversation
            for table in (self._ours, self._theirs)
            for conversation in table.values()
            if conversation.deadline < now
        ]
        for conversation in expired:
            conversation.is_expired = True
            conversation.deadline = math.inf
        return expired

    def _check_turn(self, conversation: Conversation, msg_type: str) -> None:
        table = self._ours if conversation.is_ours else self._theirs
        if table.get(conversation.first_id) is not conversation:
            raise LocalProtocolError(f"{msg_type}: {conversation!r} has ended")
        if conversation.turn is not OURS:
            raise LocalProtocolError(f"{msg_type}: the peer has the token of {conversation!r}")

    def _check_dialect(self) -> Dialect:
        if self.dialect is None:
            raise LocalProtocolError("nothing can be sent before the peer's first message")
        return self.dialect

    def _write(self, message: bytes) -> None:
        """Queue our next message."""
        frame = encode_frame(message)
        self._last_id += 1
        self._unsent.append(frame)
        self.unsent_bytes += len(frame)

    def _write_parts(self, message: Sequence[bytes]) -> None:
        frame = frame_parts(message)
        self._last_id += 1
        self._unsent += frame
        self.unsent_bytes += sum(map(len, frame))

    def _set_dialect(self, dialect: Dialect | None) -> None:
        self.dialect = dialect
        if dialect is not None:
            self._ping_type = codec.PING_TYPES[dialect]
            self._pong_type = codec.PONG_TYPES[dialect]

    # --- conversations ------------------------------------------------------------------

    def _expect(self, conversation: Conversation) -> None:
        conversation.deadline = self._clock() + conversation.timeout_s

    def _end(self, conversation: Conversation) -> None:
        if conversation.is_ours:
            self._ours.pop(conversation.first_id, None)
        else:
            self._theirs.pop(conversation.first_id, None)
            self.awaiting_reply -= conversation.turn is OURS
        conversation.turn = ENDED
        conversation.deadline = math.inf

    def _on_ping(self, conversation: Conversation, msg: Msg) -> None:
        if not msg.owner or msg.id != msg.first:
            raise RemoteProtocolError(f"{_text(msg)} does not begin its conversation")
        if msg.last:  # no answer is expected
            return
        if not msg.token:
            raise RemoteProtocolError(f"{_text(msg)} does not pass the token on")
        self.send(self._pong_type, b"", conversation=conversation)
        self.n_pongs += 1

    def _on_pong(self, conversation: Conversation, msg: Msg) -> None:
        if conversation is not self._ping:
            raise RemoteProtocolError(f"{_text(msg)} belongs to {conversation!r}, which is no ping")
        if msg.type != self._pong_type or not msg.last:
            raise RemoteProtocolError(f"{_text(msg)} answers a ping, expected a pong as the last")
        self._ping = None


def _text(msg: Msg) -> str:
    return f"message {msg.id} ({msg.type})"
