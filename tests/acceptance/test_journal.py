"""Anybody with the journal can recompute every hash and every figure (contract A5, A7): with the README's own code."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ledger.tokens import Role
from tests.support.client import Client, connect
from tests.support.service import Service

README = Path(__file__).parents[2] / "README.md"


def readme_check() -> Callable[[str, str], tuple[int, str]]:
    """Return the function `check` of the README, as it is printed there."""
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102 - our own README
    check: Callable[[str, str], tuple[int, str]] = names["check"]
    return check


async def play(client: Client) -> None:
    """A little of everything: overage, a transfer that overruns, refunds, an expiry, a plan that ends."""
    await client.open_account(
        "a",
        payment_method_verified=True,
        overage={"enabled": True, "cap_usd": "1.00", "credit_price_usd": "0.001"},
    )
    await client.grant("a", "plan", 500, kind="plan")
    call = [("voice_call_minute", 60)]
    await client.reserve("a", "call", *call, transferable=True)
    await client.settle("a", "call", ("voice_call_minute", 61), ("voice_transfer_minute", 130))
    await client.refund("a", "call", "rf-1", 1000)
    await client.reserve("a", "video", ("video_analysis", 10))
    await client.release("a", "video")
    await client.reserve("a", "lost", ttl_seconds=1)
    await client.grant("a", "down", -100, kind="adjustment")
    now = (await client.get("/v1/clock")).body["now"]
    await client.call("PUT", "/v1/clock", {"now": f"{int(now[:4]) + 1}{now[4:]}"})
    await client.reserve("a", "later")
    await client.refund("a", "call", "rf-2")


async def entries_of(client: Client, account_id: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None:
        page = (await client.get(f"/v1/accounts/{account_id}/entries?limit=3&cursor={cursor}".rstrip("="))).body
        entries += page["data"]
        cursor = page["next_cursor"]
    return entries


async def test_hashes_and_figures_follow_from_the_journal(server: Service) -> None:
    async with connect(server) as client:
        await play(client)
        sequence, head = readme_check()(f"{server.url}/v1/accounts/a/entries", server.tokens[Role.READER])
        first = (await client.get("/v1/accounts/a/entries?limit=500")).body["data"]
        assert (sequence, head) == (len(first), first[-1]["hash"])
        left: Counter[str] = Counter()
        consumed: Counter[str] = Counter()
        for entry in first:
            for posting in entry["postings"]:
                left[posting["debit"]] -= posting["credits"]
                left[posting["credit"]] += posting["credits"]
                if posting["credit"].startswith("consumed:"):
                    assert posting["operation"] == posting["credit"].removeprefix("consumed:")
                    consumed[posting["operation"]] += posting["quantity"] or 0
        balance = await client.balance("a")
        grants = {f"grant:{g['grant_id']}": g["remaining"] for g in balance["grants"] if g["remaining"]}
        assert {name: n for name, n in left.items() if name.startswith("grant:") and n} == grants
        assert {name: n for name, n in left.items() if name.startswith("hold:") and n} == {"hold:later": 11}
        assert left["overdraft"] == -balance["overdraft"]
        assert consumed == {"voice_call_minute": 2, "voice_transfer_minute": 6}
        await client.assert_audit_clean()


async def test_a_transfers_lines_carry_their_quantity_once(server: Service) -> None:
    """A7: a line that several sources pay carries its quantity on the first posting alone."""
    async with connect(server) as client:
        await client.open_account("b", 2000)
        await client.reserve("b", "call", ("voice_call_minute", 60))
        await client.settle("b", "call", ("voice_call_minute", 60), ("voice_transfer_minute", 60))
        job = (await client.get("/v1/accounts/b/jobs/call")).body
        settled = job["entries"][1]["postings"]
        assert [(p["debit"], p["credit"], p["credits"], p["quantity"]) for p in settled] == [
            ("hold:call", "consumed:voice_call_minute", 620, 1),
            ("grant:opening", "consumed:voice_transfer_minute", 460, 2),
        ]
