"""Adding up the journal: every figure of an account once more, from its postings alone (contract A1 to A7).

Nothing here is shared with the core on purpose: accounts of the books are read by their names, and the hash is
computed with the standard library. What the journal does not say is taken from the jobs (the environment) and from the
grants (the end).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from ledger.core.account import Account, Period, UsageCount, UsageKey
from ledger.core.books import Entry


def check(account: Account, entries: Sequence[Entry], usage: Mapping[UsageKey, UsageCount]) -> None:
    """Fail unless the entries chain and the account shows exactly what they add up to."""
    check_chain(entries, account.number)
    assert account.sequence == len(entries)
    assert account.head == (entries[-1].hash if entries else "0" * 64)
    added = Added(account, entries)
    added.check_balances(account)
    added.check_jobs(account)
    added.check_months(account)
    added.check_usage(usage)


def check_chain(entries: Sequence[Entry], account: int) -> None:
    """Fail unless entries are numbered without a gap, in order of time, each over its predecessor's hash (A5)."""
    head = "0" * 64
    latest = entries[0].at if entries else None
    for expected, entry in enumerate(entries, start=1):
        assert (entry.account, entry.sequence) == (account, expected)
        assert entry.postings, "an entry has at least one posting (A1)"
        assert all(posting.credits > 0 for posting in entry.postings), "a posting moves something (A1)"
        assert entry.previous_hash == head
        head = hashlib.sha256((head + text_of(entry)).encode()).hexdigest()
        assert entry.hash == head, f"entry {expected} was changed"
        assert latest is not None
        assert entry.at >= latest, "time does not go back"
        latest = entry.at


def text_of(entry: Entry) -> str:
    """Return the text that is hashed after the predecessor's hash."""
    postings = [[p.debit, p.credit, p.credits, p.operation, p.quantity] for p in entry.postings]
    at = entry.at.isoformat().replace("+00:00", "Z")
    parts = [entry.account, entry.sequence, entry.kind, entry.job, at, postings]
    return json.dumps(parts, separators=(",", ":"), ensure_ascii=False)


def month_of(at: datetime) -> str:
    """Return the calendar month of an instant."""
    return at.strftime("%Y-%m")


class Added:
    """The figures of one account, added up from its journal."""

    def __init__(self, account: Account, entries: Sequence[Entry]) -> None:
        self.balance: Counter[str] = Counter()
        """Credits less debits, by account of the books."""
        self.open_holds: dict[int, Counter[str]] = {}
        """What open jobs took, by job and source."""
        self.charged: Counter[int] = Counter()
        self.charged_overage: Counter[int] = Counter()
        self.charged_overdraft: Counter[int] = Counter()
        self.returned: Counter[int] = Counter()
        self.refunded: Counter[int] = Counter()
        self.status: dict[int, str] = {}
        self.months: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.usage: defaultdict[tuple[str, str, str, str], Counter[str]] = defaultdict(Counter)
        self._jobs = {job.number: job for job in account.jobs.values()}
        self._ends = {f"grant:{grant.number}": grant.expires_at for grant in account.grants.values()}
        for entry in entries:
            self._add(entry)

    # -- adding up --------------------------------------------------------------------------------------------------

    def _add(self, entry: Entry) -> None:
        for posting in entry.postings:
            self.balance[posting.debit] -= posting.credits
            self.balance[posting.credit] += posting.credits
            if posting.credit == "expired":
                end = self._ends[posting.debit]
                assert end is not None
                self.months[month_of(end - timedelta(microseconds=1))]["expired"] += posting.credits
        add = {
            "grant": self._grant,
            "reserve": self._reserve,
            "settle": self._settle,
            "release": self._close,
            "expire": self._close,
            "refund": self._refund,
            "expire_grant": self._expire_grant,
        }[entry.kind]
        add(entry)

    def _grant(self, entry: Entry) -> None:
        month = self.months[month_of(entry.at)]
        for posting in entry.postings:
            if posting.debit.startswith("issued:"):
                month["adjusted" if posting.debit == "issued:adjustment" else "granted"] += posting.credits
                month["adjusted_up"] += posting.credits if posting.debit == "issued:adjustment" else 0
            elif posting.credit.startswith("issued:"):
                month["adjusted"] -= posting.credits
            else:
                assert posting.credit == "overdraft"

    def _expire_grant(self, entry: Entry) -> None:
        assert [posting.credit for posting in entry.postings] == ["expired"]

    def _reserve(self, entry: Entry) -> None:
        number = entry.job
        assert number == entry.sequence, "a job is known by the entry that reserved it"
        self.status[number] = "reserved"
        self.open_holds[number] = Counter()
        for posting in entry.postings:
            assert posting.credit == f"hold:{number}"
            assert posting.debit.split(":")[0] in ("grant", "overage")
            self.open_holds[number][posting.debit] += posting.credits

    def _close(self, entry: Entry) -> None:
        assert entry.job is not None
        self.status[entry.job] = {"settle": "settled", "release": "released", "expire": "expired"}[entry.kind]
        del self.open_holds[entry.job]
        for posting in entry.postings:
            if posting.debit == f"hold:{entry.job}" and not posting.credit.startswith("consumed:"):
                self.returned[entry.job] += posting.credits
        assert self.balance[f"hold:{entry.job}"] == 0, "a closed job holds nothing (A3)"

    def _settle(self, entry: Entry) -> None:
        number = entry.job
        assert number is not None
        job = self._jobs[number]
        held = self.open_holds[number]
        from_hold = 0
        day = entry.at.date().isoformat()
        counted: set[str] = set()
        for posting in entry.postings:
            if not posting.credit.startswith("consumed:"):
                continue
            assert posting.credit == f"consumed:{posting.operation}"
            self.charged[number] += posting.credits
            self.charged_overdraft[number] += posting.credits if posting.debit == "overdraft" else 0
            self.charged_overage[number] += posting.credits if posting.debit.startswith("overage:") else 0
            from_hold += posting.credits if posting.debit.startswith("hold:") else 0
            usage = self.usage[job.period, day, job.environment, str(posting.operation)]
            usage["credits"] += posting.credits
            usage["quantity"] += posting.quantity or 0
            usage["jobs"] += posting.operation not in counted
            usage["first_jobs"] += not counted
            counted.add(str(posting.operation))
        balance_part = sum(c for source, c in held.items() if source.startswith("grant:"))
        self.charged_overage[number] += max(0, from_hold - balance_part)  # F3: overage is used up last
        self.months[job.period]["charged"] += self.charged[number]
        self.months[job.period][f"{job.environment}_used"] += self.charged[number]
        self._close(entry)

    def _refund(self, entry: Entry) -> None:
        number = entry.job
        assert number is not None
        job = self._jobs[number]
        month = self.months[month_of(entry.at)]
        for posting in entry.postings:
            if not posting.debit.startswith("consumed:"):
                assert posting.debit.startswith("grant:"), "what came back pays an overdraft first (J12)"
                assert posting.credit == "overdraft"
                continue
            assert posting.debit == f"consumed:{posting.operation}"
            self.refunded[number] += posting.credits
            month["refunded"] += posting.credits
            if not posting.credit.startswith("overage:"):
                month["refunded_to_balance"] += posting.credits
            key = (month_of(entry.at), entry.at.date().isoformat(), job.environment, str(posting.operation))
            self.usage[key]["refunded"] += posting.credits

    # -- comparing --------------------------------------------------------------------------------------------------

    def check_balances(self, account: Account) -> None:
        """Compare available, held, overdraft, and every grant (A2, A6)."""
        held: Counter[str] = Counter()
        for sources in self.open_holds.values():
            held.update(sources)
        for grant in account.grants.values():
            name = f"grant:{grant.number}"
            assert grant.remaining == self.balance[name] >= 0, grant.grant_id
            assert grant.held == held[name], grant.grant_id
        of_grants = [name for name in self.balance if name.startswith("grant:")]
        assert account.available == sum(self.balance[name] for name in of_grants)
        assert account.held == sum(held[name] for name in of_grants)
        assert account.overdraft == -self.balance["overdraft"] >= 0
        assert not (account.available and account.overdraft), "nothing is available while there is an overdraft"
        assert sum(grant.kind == "welcome" for grant in account.grants.values()) <= 1

    def check_jobs(self, account: Account) -> None:
        """Compare what each job holds, was charged, returned and refunded, and the slots that are taken (A3)."""
        slots: Counter[tuple[str, str]] = Counter()
        for job in account.jobs.values():
            assert job.status == self.status[job.number]
            assert 0 <= self.refunded[job.number] == job.refunded <= self.charged[job.number]
            assert sum(s.credits for s in job.segments) == self.charged[job.number] - job.refunded
            if job.open:
                slots[job.environment, job.slot] += 1
                assert job.held_credits == sum(self.open_holds[job.number].values())
                assert job.closing is None
                continue
            closing = job.closing
            assert closing is not None
            assert closing.charged == self.charged[job.number]
            assert closing.returned == self.returned[job.number]
            assert closing.over_hold == closing.charged + closing.returned - job.held_credits >= 0
            assert closing.funding.overage == self.charged_overage[job.number]
            assert closing.funding.overdraft == self.charged_overdraft[job.number]
            parts = closing.funding.balance + closing.funding.overage + closing.funding.overdraft
            assert parts == closing.charged
        assert {slot: count for slot, count in account.open_slots.items() if count} == dict(slots)
        owed = {job.number: job.overdraft for job in account.jobs.values() if job.overdraft}
        assert sum(owed.values()) == account.overdraft
        assert list(account.debts) == sorted(owed, key=lambda number: closing_entry(account, number))

    def check_months(self, account: Account) -> None:
        """Compare quotas, overage and the lines of the statement, month by month (A2)."""
        months = {month: dict(counts) for month, counts in self.months.items()}
        for job in account.jobs.values():
            month = months.setdefault(job.period, {})
            held = self.open_holds.get(job.number, Counter())
            field = f"{job.environment}_held"
            month[field] = month.get(field, 0) + sum(held.values())
            overage = held[f"overage:{job.period}"]
            month["overage_held"] = month.get("overage_held", 0) + overage
        for name, balance in self.balance.items():
            if name.startswith("overage:"):
                month = months[name.removeprefix("overage:")]
                month["overage_used"] = -balance - month["overage_held"]
        for name, shown in account.periods.items():
            added = months.pop(name, {})
            figures = {field: getattr(shown, field) for field in FIGURES}
            assert figures == {field: added.get(field, 0) for field in FIGURES}
        assert not any(any(counts.values()) for counts in months.values())

    def check_usage(self, usage: Mapping[UsageKey, UsageCount]) -> None:
        """Compare the usage totals (A4)."""
        shown = {}
        for key, count in usage.items():
            counts = msgspec.structs.asdict(count)
            del counts["unit"]
            shown[key.period, key.day, key.environment, key.operation] = counts
        fields = ("quantity", "credits", "refunded", "jobs", "first_jobs")
        added = {key: {field: counts[field] for field in fields} for key, counts in self.usage.items()}
        assert shown == added


FIGURES = tuple(
    field
    for field in Period.__struct_fields__
    if field not in ("period", "overage_price", "opening", "threshold_raised", "cap_raised", "closed_at")
)
"""What the postings add up to, of what is kept of a month; the rest says what was told and decided."""


def closing_entry(account: Account, number: int) -> int:
    """Return the entry that closed a job, by the job's number."""
    job = next(job for job in account.jobs.values() if job.number == number)
    assert job.closing is not None
    return job.closing.entry
