"""Chatter (003): conversations of SBS messages between two peers, over TCP or TLS.

A protocol on top of it is a :class:`Handler`. An echo server and its client::

    class Echo(chatter.Handler):
        def __init__(self, connection: chatter.Connection) -> None:
            self.connection = connection

        def on_message(self, message: chatter.Message) -> None:
            if not message.is_last:  # the peer expects an answer
                self.connection.send(
                    "Test.MsgEcho", message.data, conversation=message.conversation
                )

    class Asker(chatter.Handler):
        def __init__(self, connection: chatter.Connection) -> None:
            self.connection = connection

        async def ask(self, data: bytes) -> bytes:
            answer = asyncio.get_running_loop().create_future()
            # `tag` is ours: it leads from the answer to its future
            self.connection.send("Test.MsgAsk", data, last=False).tag = answer
            return await answer

        def on_message(self, message: chatter.Message) -> None:
            message.conversation.tag.set_result(message.data)

    address = chatter.parse_address("tcp+sbs://127.0.0.1:23012")
    async with await chatter.listen(address, Echo) as listener:
        connection, asker = await chatter.connect(listener.address, Asker)
        async with connection:
            assert await asker.ask(b"hello") == b"hello"

Over TLS the address is ``ssl+sbs://…``; the listener needs a context with a certificate, which
clients verify. Handlers are called on the event loop's thread, message by message; they answer
at once or later.
"""

from eventer_bridge.chatter.codec import Dialect
from eventer_bridge.chatter.connection import (
    Address,
    Connection,
    Handler,
    Listener,
    connect,
    listen,
    parse_address,
)
from eventer_bridge.chatter.protocol import Conversation, Message

__all__ = [
    "Address",
    "Connection",
    "Conversation",
    "Dialect",
    "Handler",
    "Listener",
    "Message",
    "connect",
    "listen",
    "parse_address",
]
