"""V3, V4: the bytes that are sent, their signature, and when they are sent again."""

from __future__ import annotations

import hashlib
import hmac
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import ledger.events
from ledger.events import ladder
from ledger.events.envelopes import BODY_BYTES_MAX, Event, TooLarge, body_of
from ledger.events.signing import Secret, signature

AT = datetime(2026, 8, 28, 12, 0, 0, 900_000, tzinfo=UTC)
OLD, NEW = "whsec_the-old-secret-of-billing", "whsec_the-new-secret-of-billing"


def event(data: bytes = b'{"used_credits":80,"total_available":100}') -> Event:
    return Event("evt_1", "credits.threshold_reached", AT, "live", "acme", data)


def test_the_envelope_has_the_published_fields_and_the_account() -> None:
    assert body_of(event(), "evt_1") == (
        b'{"id":"evt_1","type":"credits.threshold_reached","created":1787918400,"environment":"live",'
        b'"account_id":"acme","data":{"used_credits":80,"total_available":100}}'
    )


def test_only_a_replay_says_of_what() -> None:
    body = msgspec.json.decode(body_of(event(), "evt_1:r2"))
    assert (body["id"], body["replay_of"]) == ("evt_1:r2", "evt_1")
    assert "replay_of" not in msgspec.json.decode(body_of(event(), "evt_1"))


def test_data_is_sent_to_the_letter_as_it_was_written() -> None:
    data = '{"metadata":{"name":"Zoë \\u0041","n":1.50}}'.encode()
    assert body_of(event(data), "evt_1").endswith(b'"data":' + data + b"}")


def test_what_does_not_fit_goes_without_its_metadata() -> None:
    head = b'{"job_id":"j","metadata":{"n":"'
    edge = BODY_BYTES_MAX - len(body_of(event(head + b'"}}'), "evt_1"))
    whole = body_of(event(head + b"x" * edge + b'"}}'), "evt_1")
    assert len(whole) == BODY_BYTES_MAX
    cut = msgspec.json.decode(body_of(event(head + b"x" * (edge + 1) + b'"}}'), "evt_1"))
    assert cut["data"] == {"job_id": "j", "metadata_omitted": True}


@pytest.mark.parametrize("data", ['{"job_id":"%s"}', '{"job_id":"%s","metadata":{}}'])
def test_what_does_not_fit_even_so_is_not_sent(data: str) -> None:
    with pytest.raises(TooLarge):
        body_of(event((data % ("x" * BODY_BYTES_MAX)).encode()), "evt_1")


def test_one_signature_for_each_active_secret() -> None:
    body = body_of(event(), "evt_1")
    header = signature(body, (Secret(NEW), Secret(OLD)), AT)
    expected = [hmac.new(s.encode(), b"1787918400." + body, hashlib.sha256).hexdigest() for s in (NEW, OLD)]
    assert header == f"t=1787918400,v1={expected[0]},v1={expected[1]}"


def test_the_readme_shows_how_to_check_it() -> None:
    readme = (Path(ledger.events.__file__).parent / "README.md").read_text()
    known: dict[str, Any] = {}
    exec(readme.partition("```python\n")[2].partition("```")[0], known)  # noqa: S102 - our own documentation
    body, now = body_of(event(), "evt_1"), datetime.now(UTC)
    header = signature(body, (Secret(NEW), Secret(OLD)), now)
    is_signed = known["is_signed"]
    assert is_signed(header, body, [OLD])
    assert is_signed(header, body, [NEW])
    assert is_signed(header, body, ["whsec_a-third-one-of-another", NEW])
    assert not is_signed(header, body, ["whsec_a-third-one-of-another"])
    assert not is_signed(header, body + b" ", [NEW])
    assert not is_signed(signature(body, (Secret(NEW),), now + timedelta(seconds=400)), body, [NEW])
    assert not is_signed(signature(body, (Secret(NEW),), now - timedelta(seconds=400)), body, [NEW])
    assert not is_signed("", body, [NEW])


def test_a_secret_does_not_show() -> None:
    secret = Secret(OLD)
    assert OLD not in f"{secret} {secret!r} {[secret]} {vars(Secret)}"


@pytest.mark.parametrize(
    ("attempts", "status_code", "status"),
    [
        (1, 200, "delivered"),
        (7, 204, "delivered"),
        (1, 299, "delivered"),
        (1, 410, "gone"),
        (7, 410, "gone"),
        (1, 199, "pending"),
        (1, 300, "pending"),
        (1, 301, "pending"),
        (1, 308, "pending"),
        (1, 400, "pending"),
        (1, 404, "pending"),
        (1, 429, "pending"),
        (6, 500, "pending"),
        (6, None, "pending"),
        (7, 500, "exhausted"),
        (7, None, "exhausted"),
        (7, 302, "exhausted"),
    ],
)
def test_v4_only_a_2xx_acknowledges_and_only_a_410_or_the_seventh_failure_ends(
    attempts: int, status_code: int | None, status: str
) -> None:
    assert ladder.after(attempts, status_code, 0.5)[0] == status


def test_v4_the_ladder() -> None:
    minutes = (1, 5, 15, 60, 180, 360)
    for attempts, nominal in enumerate(minutes, start=1):
        assert ladder.after(attempts, 500, 0.0) == ("pending", timedelta(minutes=nominal / 2))
        assert ladder.after(attempts, 500, 1.0) == ("pending", timedelta(minutes=nominal))
    assert ladder.DELAYS[0] == timedelta(0)
    assert len(ladder.DELAYS) == 7


def test_what_is_drawn_is_spread_from_the_half_to_the_whole() -> None:
    drawn = [ladder.draw() for _ in range(1_000)]
    assert 0 <= min(drawn) < 0.1
    assert 0.9 < max(drawn) <= 1
