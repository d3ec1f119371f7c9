"""The rules of conversations (003) written down once more, and what both make of the same.

Bytes are read as a sequence of operations: messages of the peer with few identifiers, so
that they often belong to each other, and messages of ours. So Hypothesis and a fuzzer that
looks at coverage can drive the same check.
"""

from typing import Final, TypeAlias

from eventer_bridge.chatter.codec import Dialect, Msg, encode
from eventer_bridge.chatter.protocol import ChatterProtocol, Conversation
from eventer_bridge.errors import RemoteProtocolError
from eventer_bridge.net.framing import encode_frame
from tests.eventer_bridge.chatter.samples import next_message

Key: TypeAlias = tuple[bool, int]
"""A conversation: whether it is ours, and its first identifier."""

_TYPES: Final = (*("T.A",) * 7, "HatChatter.Ping")
_IDS: Final = 8


class Oracle:
    """Who may send in which conversation, by whether it is ours and its first identifier."""

    def __init__(self) -> None:
        self.is_our_turn: dict[Key, bool] = {}
        self.ping: Key | None = None
        self.next_id = 1

    def send(self, key: Key | None, *, last: bool, token: bool) -> None:
        """We send a message; ``key`` is None to begin a conversation of ours."""
        self._advance(key or (True, self.next_id), last, is_our_turn=not token)
        self.next_id += 1

    def send_ping(self) -> None:
        """We ping, unless we did already."""
        if self.ping is None:
            self.ping = True, self.next_id
            self.send(None, last=False, token=True)

    def receive(self, msg: Msg) -> bool:
        """Whether the peer may send this message; its effect, if it may."""
        key = not msg.owner, msg.first
        begins = msg.owner and msg.id == msg.first
        if begins == (key in self.is_our_turn) or self.is_our_turn.get(key, False):
            return False
        if key == self.ping:
            if msg.type != "HatChatter.Pong" or not msg.last:
                return False
            self.ping = None
        elif msg.type == "HatChatter.Pong":
            return False
        if msg.type == "HatChatter.Ping":
            if not begins or not (msg.last or msg.token):
                return False
            if not msg.last:
                self.next_id += 1  # of the pong
            return True
        self._advance(key, msg.last, is_our_turn=msg.token)
        return True

    def _advance(self, key: Key, last: bool, *, is_our_turn: bool) -> None:
        if last:
            self.is_our_turn.pop(key, None)
        else:
            self.is_our_turn[key] = is_our_turn


def check(operations: bytes) -> int:
    """Do the operations with a protocol and the oracle.

    Args:
        operations: two bytes for each.

    Returns:
        How many messages of the peer were taken.

    Raises:
        AssertionError: the two disagree.
    """
    protocol = ChatterProtocol(Dialect.CURRENT, max_frame_bytes=1 << 10)
    oracle = Oracle()
    conversations: dict[Key, Conversation] = {}
    taken = 0
    for flags, number in zip(operations[::2], operations[1::2], strict=False):
        last, token = bool(flags & 1), bool(flags & 2)
        if flags >> 2 & 7 < 2:
            _send(protocol, oracle, conversations, number, last=last, token=token)
            continue
        msg = _message(oracle, flags, number, last=last, token=token)
        protocol.receive_data(encode_frame(encode(msg, Dialect.CURRENT)))
        try:
            message = next_message(protocol)
        except RemoteProtocolError:
            assert not oracle.receive(msg), msg
            assert protocol.next_message() is None
            return taken
        assert oracle.receive(msg), msg
        taken += 1
        assert (message is None) is (msg.type != "T.A"), msg
        if message is not None:
            conversations[message.conversation.is_ours, msg.first] = message.conversation
        _compare(protocol, oracle, conversations)
    return taken


def _message(oracle: Oracle, flags: int, number: int, *, last: bool, token: bool) -> Msg:
    """A message of the peer, more often one that it may send."""
    kind, msg_type, first = flags >> 2 & 7, _TYPES[flags >> 5], 1 + number % _IDS
    turns = [key for key, is_ours in oracle.is_our_turn.items() if not is_ours]
    if kind >= 4 and turns:  # goes on with a conversation
        is_ours, first = key = turns[number % len(turns)]
        if key == oracle.ping and number < 200:
            return Msg(100, first, False, token, number >= 20, "HatChatter.Pong", b"")
        return Msg(100, first, not is_ours, token, last, msg_type, b"")
    if kind < 7:  # begins one
        return Msg(first, first, True, token, last, msg_type, b"")
    if number % 3 == 0:
        msg_type = "HatChatter.Pong"
    return Msg(1 + number // _IDS % _IDS, first, bool(number & 1), token, last, msg_type, b"")


def _send(
    protocol: ChatterProtocol,
    oracle: Oracle,
    conversations: dict[Key, Conversation],
    number: int,
    *,
    last: bool,
    token: bool,
) -> None:
    if number == 0:
        protocol.ping()
        oracle.send_ping()
        return
    if last and token and number % 4 == 0:
        protocol.send_alone("T.B", b"")
        oracle.send(None, last=True, token=True)
        return
    mine = [i for i in conversations.values() if i.may_send]
    conversation = mine[number % len(mine)] if mine and number % 2 else None
    key = (conversation.is_ours, conversation.first_id) if conversation else None
    sent = protocol.send("T.B", b"", conversation=conversation, last=last, token=token)
    oracle.send(key, last=last, token=token)
    conversations[sent.is_ours, sent.first_id] = sent
    _compare(protocol, oracle, conversations)


def _compare(
    protocol: ChatterProtocol, oracle: Oracle, conversations: dict[Key, Conversation]
) -> None:
    assert protocol.open_conversations == len(oracle.is_our_turn)
    ours_to_answer = [key for key, is_ours in oracle.is_our_turn.items() if is_ours and not key[0]]
    assert protocol.awaiting_reply == len(ours_to_answer)
    assert protocol.is_pinging is (oracle.ping is not None)
    for key, conversation in conversations.items():
        assert conversation.may_send is oracle.is_our_turn.get(key, False), key
