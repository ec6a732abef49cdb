"""What must be so when everything is quiet again, whatever went wrong before.

Callers ran side by side, so nobody knows in which order their commands were decided, except the journal. So the
independent model is told the commands **in the order of the journal**, each at the instant of its entry, and every
answer that a caller was given must be the one that the model gives. What the model then holds must be what the
interface shows: balance, jobs, usage, statement. Refusals are in no journal: they must be of the kind that an account
may meet at all, and must have left nothing. The postings are added up once more by their names alone, the hashes are
computed anew, and the service's own audit must find nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from tests.properties.comparing import answer_differences, differences
from tests.properties.model import Model
from tests.properties.model_answers import Expected
from tests.properties.model_books import instant_of, period_of
from tests.support.client import Client
from tests.torture.load import CAST, Command, Json, Load

REPEATED: Final = 60
"""How many commands are asked for once more when all is over."""

_FUNDS: Final = {"insufficient_credits", "spending_cap_reached"}
_CEILINGS: Final = {
    "concurrency_limit_reached",
    "call_concurrency_limit_reached",
    "period_quota_exhausted",
    "request_exceeds_period_quota",
}
REFUSALS: Final = {"hot": set(), "tight": _FUNDS, "overage": _FUNDS, "narrow": _CEILINGS, "ending": _FUNDS}
"""Why a reservation of an account may be refused: a hot account's never."""


async def verify(load: Load, client: Client, seed: str) -> list[str]:
    """Return every difference between what was answered, what the journal has, and what the model and reads say."""
    found = [f"{command.path}: {defect}" for command in load.commands for defect in command.defects]
    unseen = [command for command in load.commands if not command.status]
    found += [f"{command.path}: it was never answered" for command in unseen]
    for cast in CAST:
        account_id = load.accounts[cast.name]
        commands = [command for command in load.commands if command.account_id == account_id and command.status]
        await until_time_is_done(client, account_id)
        entries = await client.every(f"/v1/accounts/{account_id}/entries", "&canonical=true")
        told = Told(cast.name, commands, entries)
        await asyncio.to_thread(told.tell_all)
        found += told.found
        found += list(wrong_links(entries))
        found += await compare_reads(client, account_id, told.model, entries)
        found += await audit(client, account_id)
        found += await repeat(load, client, commands, random.Random(seed))  # noqa: S311 - no secret
        if await client.every(f"/v1/accounts/{account_id}/entries", "&canonical=true") != entries:
            found.append(f"{account_id}: repeating commands changed the journal")
    return found


async def until_time_is_done(client: Client, account_id: str) -> None:
    """Wait until the holds that nobody closes and the grants that end are over, and a sweep has entered that."""
    async with asyncio.timeout(60):
        while to_come(await client.balance(account_id)):  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.2)
    for name in ("expire_holds", "expire_grants"):
        answer = await client.call("POST", f"/v1/sweeps/{name}")
        assert answer.status == 200, answer


def to_come(balance: Json) -> bool:
    """Tell whether time alone will soon change a balance."""
    held = balance["held"] + balance["overage"]["held"]
    return held > 0 or any(grant["expires_at"] for grant in balance["grants"])


class Told:
    """The commands of one account, told to the model in the order of the journal."""

    def __init__(self, cast: str, commands: list[Command], entries: list[Json]) -> None:
        self.found: list[str] = []
        self._cast = cast
        self._entries = entries
        self._jobs = {(c.name, c.kind): c for c in commands if c.kind in ("reserve", "settle", "release")}
        self._grants = {c.name: c for c in commands if c.kind == "grant"}
        self._refunds = {(c.name, c.answer["created_at"]): c for c in commands if c.kind == "refund" and c.done}
        self._commands = commands
        self._opening = commands[0]
        self._journalled: Counter[int] = Counter()
        self.model = Model(instant_of(entries[0]["created_at"]))

    def tell_all(self) -> None:
        """Tell the model everything, and note each difference."""
        self.model.put_account(self._opening.account_id, self._opening.body)
        for entry in self._entries:
            self._tell(entry)
        self.model.check_invariants()
        for command in self._commands:
            self._check_count(command)

    def _tell(self, entry: Json) -> None:
        self.model.advance(instant_of(entry["created_at"]))
        kind, job_id = entry["kind"], entry["job_id"]
        if kind in ("expire", "expire_grant"):
            return  # The model has done it by itself, or its figures differ in the end.
        if kind == "grant":
            grant_id = entry["postings"][0]["credit"].removeprefix("grant:")
            command = None if grant_id == "welcome" else self._grants.get(grant_id)
            if grant_id == "welcome":
                return
        elif kind == "refund":
            command = self._refunds.get((job_id, entry["created_at"]))
        else:
            command = self._jobs.get((job_id, kind))
        if command is None:
            self.found.append(f"entry {entry['sequence']} ({kind} {job_id}) is nobody's command, or answered otherwise")
            return
        self._journalled[id(command)] += 1
        self._compare(command, self._expected(command))

    def _expected(self, command: Command) -> Expected:
        name = {"grant": "put_grant"}.get(command.kind, command.kind)
        answer: Expected = getattr(self.model, name)(command.account_id, command.name, command.body)
        return answer

    def _compare(self, command: Command, expected: Expected) -> None:
        if command.code == "job_not_completed" and command.kind == "reserve" and command.attempts > 1:
            return  # It was carried out, nobody heard of it, and it had expired when it was asked for again.
        status, body = command.status, dict(command.answer)
        if command.attempts > 1 and status == 200:
            status = expected.status  # It had been done when it was asked for again: else the same answer.
        if command.kind == "grant" and command.attempts > 1:
            body |= {name: (expected.body or {}).get(name) for name in ("remaining", "held")}  # Those are of now.
        lines = answer_differences(expected, status, body)
        self.found += [f"{command.path} (asked {command.attempts} times): {line}" for line in lines]

    def _check_count(self, command: Command) -> None:
        """Once in the journal if it was answered so, else not at all; and a refusal must be one that can be."""
        if command.kind == "account":
            return
        count = self._journalled[id(command)]
        if command.done:
            if count != 1:
                self.found.append(f"{command.path}: answered {command.status}, and {count} times in the journal")
            return
        if command.kind == "reserve" and command.code == "job_not_completed":
            return
        if count:
            self.found.append(f"{command.path}: refused ({command.code}), and {count} times in the journal")
        if not self._may_refuse(command):
            self.found.append(f"{command.path} (asked {command.attempts} times): {command.answer}")

    def _may_refuse(self, command: Command) -> bool:
        if command.kind == "reserve":
            return command.code in REFUSALS[self._cast]
        if command.kind == "grant":  # Its end had passed before it was heard of.
            return command.code == "validation_error" and command.body["expires_at"] is not None
        job = self.model.accounts[command.account_id].jobs[command.name]
        return command.code == "job_not_completed" and job.status == "expired"


async def compare_reads(client: Client, account_id: str, model: Model, entries: list[Json]) -> list[str]:
    """Compare what the interface shows with what the model holds, and with the sums of the postings."""
    now = instant_of((await client.get("/v1/clock")).body["now"])
    model.advance(now)
    path = f"/v1/accounts/{account_id}"
    balance = (await client.get(f"{path}/balance")).body
    found = list(wrong_sums(balance, entries))
    found += differences({**(model.balance(account_id).body or {}), "at": balance["at"]}, balance, "balance")
    month = period_of(now)
    for name, asked in (("usage", f"usage?period={month}"), ("statement", f"statements/{month}")):
        answer = await client.get(f"{path}/{asked}")
        expected: Expected = getattr(model, name)(account_id, month)
        found += [f"{name}.{line}" for line in answer_differences(expected, answer.status, answer.body)]
    shown = {job["job_id"]: job for job in await client.every(f"{path}/jobs")}
    jobs = model.accounts[account_id].jobs
    if shown.keys() != jobs.keys():
        found.append(f"jobs that one has and the other has not: {shown.keys() ^ jobs.keys()}")
    for job_id in shown.keys() & jobs.keys():
        job = model.get_job(account_id, job_id).body or {}
        del job["result"]  # A list does not carry those.
        found += differences(job, shown[job_id], f"job {job_id}")
    return [f"{account_id}: {line}" for line in found]


def wrong_sums(balance: Json, entries: list[Json]) -> Iterator[str]:
    """Add the postings up by the names of their accounts, and nothing else (A1, A2)."""
    books: Counter[str] = Counter()
    for entry in entries:
        for posting in entry["postings"]:
            books[posting["debit"]] -= posting["credits"]
            books[posting["credit"]] += posting["credits"]
    if total := sum(books.values()):
        yield f"the books come to {total}"
    kinds: Counter[str] = Counter()
    for name, credits in books.items():
        kinds[name.partition(":")[0]] += credits
        if name.startswith("hold:") and credits:
            yield f"{name} still has {credits}"
    wanted = {"available": kinds["grant"], "held": kinds["hold"], "overdraft": -kinds["overdraft"]}
    shown = {name: balance[name] for name in wanted}
    shown["held"] += balance["overage"]["held"]
    if shown != wanted:
        yield f"the postings come to {wanted}, shown is {shown}"
    for grant in balance["grants"]:
        if grant["remaining"] != books[f"grant:{grant['grant_id']}"]:
            yield f"the postings of {grant['grant_id']} come to {books['grant:' + grant['grant_id']]}"


def wrong_links(entries: list[Json]) -> Iterator[str]:
    """Compute every hash anew, and see that numbers and instants only go up (A5)."""
    previous, latest = "0" * 64, ""
    for sequence, entry in enumerate(entries, start=1):
        digest = hashlib.sha256((previous + entry["canonical"]).encode()).hexdigest()
        at = f"{instant_of(entry['created_at']):%Y-%m-%dT%H:%M:%S.%f}"
        if (entry["sequence"], entry["previous_hash"], entry["hash"]) != (sequence, previous, digest) or at < latest:
            yield f"entry {sequence} does not follow from the one before it"
            return
        previous, latest = digest, at


async def audit(client: Client, account_id: str | None = None) -> list[str]:
    """Return what the service's own audit finds."""
    answer = await client.call("POST", "/v1/audit", {"account_id": account_id})
    assert answer.status == 200, answer
    return [f"the audit found {discrepancy}" for discrepancy in answer.body["discrepancies"]]


async def repeat(load: Load, client: Client, commands: list[Command], rng: random.Random) -> list[str]:
    """Ask for some commands once more: what was answered is answered again."""
    kept = [command for command in commands if command.done and command.kind in ("settle", "release", "refund")]
    found: list[str] = []
    for command in rng.sample(kept, min(REPEATED, len(kept))):
        answer: Any = await client.call(command.method, command.path, command.body)
        if (answer.status, answer.body) != (200, command.answer):
            found.append(f"{command.path}: answered {command.answer}, and when repeated {answer.status} {answer.body}")
    return found
