"""A process that owns an embedded PostgreSQL, for tests that kill one of the two.

It prints one line of JSON once PostgreSQL is up, and stops it in order when its standard input is closed.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures.thread
import encodings.idna
import json
import os
import sys
from pathlib import Path

from ledger.embedded import EmbeddedPostgres

_READY_BEFORE_THE_SWITCH = (concurrent.futures.thread, encodings.idna)
"""Imported late by asyncio and sockets, and perhaps out of reach for the user we switch to."""


async def own(data_dir: Path, programs: Path | None) -> None:
    postgres = EmbeddedPostgres(data_dir, programs=programs)
    try:
        urls = await postgres.start()
        facts = {"pid": postgres.pid, "owner": urls.owner, "service": urls.service, "uid": os.geteuid()}
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)
    finally:
        await postgres.stop()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--programs", type=Path)
    parser.add_argument("--uid", type=int)
    arguments = parser.parse_args()
    if arguments.uid is not None:
        os.setgroups([])
        os.setgid(arguments.uid)
        os.setuid(arguments.uid)
    asyncio.run(own(arguments.data_dir, arguments.programs))


if __name__ == "__main__":
    main()
