"""An S3 server on loopback, and a network before it on which each answer takes so many milliseconds more.

    client  ──▶  proxy: answers DELAY later  ──▶  moto's server         two processes of their own

Requests and answers of any number of connections are delayed side by side, as those of a store far away are; the bytes of a
connection stay in order. Started by `slow_object_store`, or by hand: python -m tests.support.slow_network BUCKET MILLISECONDS
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from urllib.parse import parse_qsl, urlsplit

from tests.support.object_store import served_objects, serving

_READ_BYTES = 1 << 18


@contextmanager
def slow_object_store(bucket: str, delay_ms: int) -> Iterator[str]:
    """Starts server and proxy in processes of their own; yields the query that URLs of the bucket end with."""
    with serving("-m", "tests.support.slow_network", bucket, str(delay_ms)) as query:
        yield query


async def _pass_on(upstream: str, delay_s: float) -> None:
    """Passes on until the input of this process ends."""
    host, _, upstream_port = upstream.partition(":")
    loop = asyncio.get_running_loop()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, answers = await asyncio.open_connection(host, int(upstream_port), limit=_READ_BYTES), asyncio.Queue()
        await asyncio.gather(_forward(reader, there[1]), _receive(there[0], answers), _send_later(answers, writer))

    async def _receive(reader: asyncio.StreamReader, answers: asyncio.Queue[tuple[float, bytes]]) -> None:
        content = b"first"
        while content:
            content = await _read(reader)
            answers.put_nowait((loop.time() + delay_s, content))

    async def _send_later(answers: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        while True:
            due_s, content = await answers.get()
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            if not content:
                writer.close()
                return
            writer.write(content)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(f"?endpoint_override=http://127.0.0.1:{server.sockets[0].getsockname()[1]}&region=us-east-1", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


async def _read(reader: asyncio.StreamReader) -> bytes:
    """What has come; nothing at the end, or where the other side has gone."""
    with suppress(ConnectionError):
        return await reader.read(_READ_BYTES)
    return b""


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while content := await _read(reader):
        writer.write(content)
    writer.close()


def main(bucket: str, delay_ms: str) -> None:
    with ExitStack() as server:
        query = dict(parse_qsl(server.enter_context(served_objects(bucket)).removeprefix("?")))
        upstream = urlsplit(query["endpoint_override"]).netloc

        async def until_the_end() -> None:
            await _pass_on(upstream, int(delay_ms) / 1000)
            server.close()
            os._exit(0)  # connections that clients keep open need no farewell

        asyncio.run(until_the_end())


if __name__ == "__main__":
    main(*sys.argv[1:])
