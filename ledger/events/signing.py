"""The signature of a delivery (contract V4)."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from datetime import datetime
from typing import Final

HEADER: Final = "Asixto-Signature"


class Secret:
    """A secret that deliveries are signed with. Whatever shows it shows that it is one, and no more."""

    __slots__ = ("_key",)

    def __init__(self, text: str) -> None:
        self._key = text.encode()

    def __repr__(self) -> str:
        return "Secret(…)"

    def sign(self, message: bytes) -> str:
        """Return the HMAC-SHA256 of a message, in hexadecimal."""
        return hmac.new(self._key, message, hashlib.sha256).hexdigest()


def signature(body: bytes, secrets: Sequence[Secret], at: datetime) -> str:
    """Return the signature header of exactly these bytes: the instant, and one signature for each active secret."""
    instant = str(int(at.timestamp()))
    message = instant.encode() + b"." + body
    return ",".join([f"t={instant}", *(f"v1={secret.sign(message)}" for secret in secrets)])
