"""Records ``tests/vectors/hat_mariner.json``: what hat-mariner really writes to a socket.

python -m tests.mariner.wire.record_vectors
"""

import asyncio
import json
from pathlib import Path
from typing import Final

from hat.drivers import net
from hat.mariner.transport import connection

from tests.mariner.wire.hat_messages import to_hat
from tests.mariner.wire.samples import SAMPLES

VECTORS: Final = Path(__file__).parents[2] / "vectors" / "hat_mariner.json"


async def record() -> list[dict[str, str]]:
    """Frames of all samples, each sent by hat-mariner's transport to a listening socket.

    Returns:
        Name of the sample, ``header`` (hexadecimal) and ``message`` (text) of its frame.
    """
    received: list[bytes] = []
    done = asyncio.Event()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read())
        writer.close()
        done.set()

    vectors = []
    server = await asyncio.start_server(take, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        for name, message in SAMPLES.items():
            done.clear()
            client = await connection.connect(net.TcpAddress(host, port))
            try:
                await client.send(to_hat(message))
                await client.drain()
            finally:
                await client.async_close()
            await done.wait()
            frame = received.pop()
            header_bytes = 1 + frame[0]
            vectors.append(
                {
                    "name": name,
                    "header": frame[:header_bytes].hex(),
                    "message": frame[header_bytes:].decode(),
                }
            )
    return vectors


def main() -> None:
    """Write the file."""
    vectors = asyncio.run(record())
    VECTORS.write_text(json.dumps(vectors, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
