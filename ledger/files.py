"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Give a file to write into, which takes the name `path` once it is complete and on the disk.

    Until then it has a hidden name beside it. Where the block ends by any exception, a cancellation included, it is
    removed and what was at `path` stays as it was. Raise OSError where nothing can be written there.
    """
    partial = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
