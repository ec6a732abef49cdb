"""The product as `serve` runs it, on a database of the server that is measured."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from tests.support.service import Service, start_service


@contextlib.asynccontextmanager
async def running_service(folder: Path, url: str, *options: str) -> AsyncIterator[Service]:
    """Run the service on a database, with more options of `serve`; its output goes to a new folder."""
    await asyncio.to_thread(folder.mkdir)
    service = await asyncio.to_thread(start_service, folder, "--database-url", url, *options)
    try:
        yield service
    finally:
        await asyncio.to_thread(service.stop)
