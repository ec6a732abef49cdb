"""A TCP proxy before PostgreSQL that can cut connections, hold bytes back, swallow answers and refuse newcomers."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Final

CHUNK: Final = 65_536


class Proxy:
    """Passes connections on to a unix socket, as badly as it is told to."""

    def __init__(self, socket_path: Path) -> None:
        self._socket_path = socket_path
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._passing = asyncio.Event()
        self._passing.set()
        self.delay_seconds = 0.0
        """How much later bytes arrive, in each direction."""
        self.swallowing = False
        """Whether what the server answers is lost on the way."""
        self.refusing = False
        """Whether new connections are closed at once."""

    async def start(self) -> int:
        """Listen, and return the port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Close everything."""
        if self._server is not None:
            self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Break all connections off, at both ends."""
        for writer in self._writers:
            writer.transport.abort()

    def stall(self) -> None:
        """Let no byte pass, and break nothing off."""
        self._passing.clear()

    def pass_on(self) -> None:
        """Be an honest proxy again."""
        self.delay_seconds = 0.0
        self.swallowing = False
        self.refusing = False
        self._passing.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(OSError):
            if not self.refusing:
                server_reader, server_writer = await asyncio.open_unix_connection(self._socket_path)
                await asyncio.gather(
                    self._pump(reader, server_writer, answers=False), self._pump(server_reader, writer, answers=True)
                )
        writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        self._writers.add(writer)
        try:
            while data := await reader.read(CHUNK):
                await self._passing.wait()
                if self.delay_seconds:
                    await asyncio.sleep(self.delay_seconds)
                if answers and self.swallowing:
                    continue
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            self._writers.discard(writer)
            writer.close()
