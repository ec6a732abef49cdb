"""Fingerprints are kept in databases for years: what they are made of may not change by accident (J10, P9)."""

from __future__ import annotations

from datetime import UTC, datetime

from ledger.core.closing import lines_fingerprint
from ledger.core.commands import Line, PutGrant, Reserve
from ledger.core.granting import grant_fingerprint
from ledger.core.reserving import request_fingerprint
from pricing.catalog import load
from tests.support.core import World, characters

LINES = (Line("voice_call_minute", 300), Line("audio_transcription", 10.2), Line("agent_turn", None))


def test_a_reservation() -> None:
    plain = Reserve(account_id="a", job_id="j", environment="live", lines=LINES, transferable=True)
    named = Reserve(account_id="a", job_id="j", environment="test", lines=LINES, fingerprint="9f2a")
    assert request_fingerprint(plain).hex() == "98ff2333fb74c2bbed98e574cc5a1776"
    assert request_fingerprint(named).hex() == "b3e880e47c934d1545febb8e089234e5"


def test_a_settlement() -> None:
    assert lines_fingerprint(LINES).hex() == "b4e7d783d6d9eb169d50043a61c3f0a2"


def test_a_grant() -> None:
    end = datetime(2027, 1, 1, tzinfo=UTC)
    grant = PutGrant(account_id="a", grant_id="g", kind="plan", credits=5, expires_at=end, reference="inv-1")
    assert grant_fingerprint(grant).hex() == "c6a79d66956bb06c3e271ce76c48b4a2"


def test_the_welcome() -> None:
    world = World()
    world.put(module_enabled=True, payment_method_verified=True)
    assert world.acme.grants_by_id["welcome"].request.hex() == "f46fb08a5868c042d96dea7728f0b852"


def test_the_grant_of_a_refund() -> None:
    world = World()
    world.open_account()
    world.grants("plan", 10, kind="plan")
    world.charges("j", characters(10))
    world.at("2026-12-01")
    world.refunds_job("j", refund_id="rf-1")
    assert world.acme.grants_by_id["refund-rf-1"].request.hex() == "c020e9a3b2f13bb40d2b0175140f55fe"


def test_the_published_prices() -> None:
    assert load().version("2026-09-11").digest == "6d162a860595d54c087434543fb7ca40900201f68e76e5b2ec5ef2cd2847dcaa"
