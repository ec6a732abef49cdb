"""The body of a delivery: the envelope of an event, the same bytes whenever it is made (contract V3)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

BODY_BYTES_MAX: Final = 256 * 1024


class TooLarge(Exception):
    """Even without its metadata, the event does not fit in a body."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event as it was written. `account_id` is None once a deletion took the account's name (R7)."""

    id: str
    type: str
    created: datetime
    environment: str
    account_id: str | None
    data: bytes


class _Envelope(msgspec.Struct, frozen=True):
    id: str
    type: str
    created: int
    environment: str
    account_id: str | None
    data: msgspec.Raw
    replay_of: str | UnsetType = UNSET


def body_of(event: Event, delivery_id: str) -> bytes:
    """Return the body of a delivery; raise `TooLarge`.

    A delivery whose id is not the event's is a replay, and says of what. Where the event is too large, the customer's
    `metadata` is left out rather than the news, and `metadata_omitted` says so.
    """
    body = _encode(event, delivery_id, event.data)
    if len(body) <= BODY_BYTES_MAX:
        return body
    data = msgspec.json.decode(event.data, type=dict[str, msgspec.Raw])
    if data.pop("metadata", None) is not None:
        data["metadata_omitted"] = msgspec.Raw(b"true")
        body = _encode(event, delivery_id, msgspec.json.encode(data))
    if len(body) > BODY_BYTES_MAX:
        raise TooLarge
    return body


def _encode(event: Event, delivery_id: str, data: bytes) -> bytes:
    return msgspec.json.encode(
        _Envelope(
            id=delivery_id,
            type=event.type,
            created=int(event.created.timestamp()),
            environment=event.environment,
            account_id=event.account_id,
            data=msgspec.Raw(data),
            replay_of=UNSET if delivery_id == event.id else event.id,
        )
    )
