"""What a test needs and the machine lacks."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

VARIABLE = "LEDGER_TESTS_NEED_SERVERS"
"""Where it is set, as where changes are checked before they land, everything has to be there."""


def lacking(message: str) -> NoReturn:
    """Skip a test for what the machine lacks, or fail it where nothing may be lacking."""
    if os.environ.get(VARIABLE):
        raise AssertionError(message)
    pytest.skip(message)
