"""The least that an HTTP answer costs here: an application that does nothing, run as the service runs its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator
from typing import Any, Final
from urllib.parse import urlsplit

import uvicorn

from tests.benchmarks.server import BenchmarkError
from tests.benchmarks.worker import ROOT

BODY: Final = b'{"padding":"%b"}' % (b"x" * 600)
"""About as long as the answer to a reservation."""


@contextlib.asynccontextmanager
async def running_bare() -> AsyncIterator[str]:
    """Run it in a process of its own and give its URL."""
    command = (sys.executable, "-m", "tests.benchmarks.bare")
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, cwd=ROOT)
    try:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().strip()
        if not urlsplit(url).port:
            raise BenchmarkError("the bare application did not start")
        yield url
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _application(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Read the request to its end, and answer."""
    while (await receive())["more_body"]:
        pass
    head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(BODY))]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": BODY})


def main() -> None:
    """Listen on a free port, tell the URL, and answer until told to stop."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            _application, loop="uvloop", http="httptools", ws="none", lifespan="off", access_log=False, log_config=None
        )
        sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
