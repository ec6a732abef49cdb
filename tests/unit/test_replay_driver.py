"""The replay against a small stand-in of the service that can be made to fail, lie and forget."""

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from ledger.replay import AWAY, USAGE, run
from ledger.replay.client import Patience, ReplayStoppedError, service_url
from ledger.replay.drive import GRANT_CREDITS, Settings, replay
from ledger.replay.report import report
from ledger.replay.tally import Problem, Tally
from ledger.replay.trace import Row, Trace

Json = dict[str, Any]
Before = Callable[[web.Request, int], web.Response | None]

ROWS = 210
"""Enough for every rule of the workload: 50, 97, 101 and 103 are among them."""

PRICES = {  # credits, measured units in a billed one, legs, minimum
    "agent_turn": (11, 1, 1, 1),
    "tts_synthesis": (1, 1, 1, 1),
    "audio_transcription": (1, 1, 1, 10),
    "image_analysis": (55, 1, 1, 1),
    "document_analysis": (40, 1, 1, 1),
    "video_analysis": (270, 1, 1, 1),
    "voice_call_minute": (620, 60, 1, 1),
    "voice_transfer_minute": (230, 60, 2, 1),
}


def trace(rows: int = ROWS) -> Trace:
    """Every kind of job, on several accounts, in 2.1 s."""
    return Trace("t", tuple(Row(r, r * 10_000_000, 3 * r, 7 * r % 500) for r in range(1, rows + 1)))


def rate(lines: list[Json]) -> int:
    total = 0
    for line in lines:
        price, per, legs, minimum = PRICES[line["operation"]]
        if line["quantity"]:
            total += price * legs * max(minimum, math.ceil(line["quantity"] / per))
    return total


def refusal(status: int, code: str) -> web.Response:
    body = {"error": {"code": code, "message": f"because [{code}]", "request_id": "r", "doc_url": "d"}}
    return web.json_response(body, status=status, headers={"Retry-After": "0"} if status == 503 else {})


class Service:
    """The least that a replay needs of a service. `before` may answer, or break, any request first."""

    def __init__(self, before: Before = lambda request, count: None) -> None:
        self.before = before
        self.requests: Counter[str] = Counter()
        self.seen: list[str] = []
        self.open_now = self.open_max = 0
        self.accounts: dict[str, Json] = {}
        self.jobs: dict[str, Json] = {}
        self.overcharge = 0
        self.leak = 0
        self.discrepancies: list[Json] = []

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._watch])
        account = "/v1/accounts/{account}"
        app.router.add_get("/v1/prices", self._prices)
        app.router.add_put(account, self._put_account)
        app.router.add_put(account + "/grants/{grant}", self._grant)
        app.router.add_get(account + "/balance", self._balance)
        app.router.add_put(account + "/jobs/{job}", self._reserve)
        app.router.add_get(account + "/jobs/{job}", self._job)
        app.router.add_post(account + "/jobs/{job}/settle", self._settle)
        app.router.add_post(account + "/jobs/{job}/release", self._release)
        app.router.add_post("/v1/audit", self._audit)
        return app

    @web.middleware
    async def _watch(self, request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
        key = f"{request.method} {request.path}"
        self.requests[key] += 1
        self.seen.append(key)
        token = request.headers["Authorization"].removeprefix("Bearer ")
        if token not in ("admin", "gateway"):
            return refusal(401, "authentication_required")
        if token != "admin" and "/jobs/" not in key and not key.startswith("GET"):
            return refusal(403, "permission_denied")
        self.open_now += 1
        self.open_max = max(self.open_max, self.open_now)
        try:
            early = self.before(request, self.requests[key])
            await asyncio.sleep(0)
            return early if early is not None else await handler(request)
        finally:
            self.open_now -= 1

    async def _prices(self, request: web.Request) -> web.Response:
        names = ("credits", "per", "legs", "minimum")
        prices = [
            {"operation": name, "unit": "u", **dict(zip(names, price, strict=True))} for name, price in PRICES.items()
        ]
        return web.json_response({"version": "v1", "effective_from": "2026-01-01", "prices": prices})

    async def _put_account(self, request: web.Request) -> web.Response:
        new = request.match_info["account"] not in self.accounts
        self.accounts.setdefault(request.match_info["account"], {"available": 0, "held": 0})
        return web.json_response({}, status=201 if new else 200)

    async def _grant(self, request: web.Request) -> web.Response:
        account = self.accounts[request.match_info["account"]]
        if "granted" in account:
            return web.json_response({}, status=200)
        account["granted"] = (await request.json())["credits"]
        account["available"] += account["granted"]
        return web.json_response({}, status=201)

    async def _balance(self, request: web.Request) -> web.Response:
        account = self.accounts[request.match_info["account"]]
        return web.json_response({**account, "overdraft": 0})

    async def _reserve(self, request: web.Request) -> web.Response:
        body = await request.json()
        name = request.match_info["job"]
        job = self.jobs.get(name)
        if job is None:
            account = self.accounts[request.match_info["account"]]
            held = rate(body["lines"]) + (460 if body.get("transferable") else 0)
            account["available"] -= held
            account["held"] += held
            job = {
                "job_id": name,
                "status": "reserved",
                "price_version": "v1",
                "created_at": "2026-11-01T00:00:00Z",
                "held_credits": held,
                "environment": body["environment"],
            }
            self.jobs[name] = job
            return web.json_response(job, status=201)
        if job["status"] == "reserved":
            return web.json_response(job)
        if job["status"] == "expired":
            return refusal(409, "job_not_completed")
        if job["status"] == "settled" and not job["stored"]:
            return refusal(409, "result_not_replayable")
        return web.json_response({**job, "replayed": True})

    async def _job(self, request: web.Request) -> web.Response:
        return web.json_response(self.jobs[request.match_info["job"]])

    async def _settle(self, request: web.Request) -> web.Response:
        body = await request.json()
        job = self.jobs[request.match_info["job"]]
        if job["status"] in ("expired", "released"):
            return refusal(409, "job_not_completed")
        if job["status"] == "reserved":
            charged = rate(body["lines"]) + self.overcharge
            self._end(request, job, "settled", charged)
            held = job["held_credits"]
            job["stored"] = body.get("result") is not None
            job["settlement"] = {
                "job_id": job["job_id"],
                "status": "settled",
                "credits_charged": charged,
                "credits_returned": max(0, held - charged),
                "credits_over_hold": max(0, charged - held),
            }
        return web.json_response(job["settlement"])

    async def _release(self, request: web.Request) -> web.Response:
        job = self.jobs[request.match_info["job"]]
        if job["status"] == "reserved":
            self._end(request, job, "released", 0)
        return web.json_response({"status": "released", "credits_returned": job["held_credits"]})

    def _end(self, request: web.Request, job: Json, status: str, charged: int) -> None:
        account = self.accounts[request.match_info["account"]]
        account["held"] -= job["held_credits"]
        account["available"] += job["held_credits"] - charged - self.leak
        job["status"], job["credits_charged"] = status, charged

    def expire(self, name: str) -> None:
        """Let a hold expire, as time does."""
        job = self.jobs[name]
        account = self.accounts["acct-0" if int(name[6:]) % 2 == 0 else f"acct-{int(name[6:]) % 50}"]
        account["held"] -= job["held_credits"]
        account["available"] += job["held_credits"]
        job["status"], job["credits_charged"] = "expired", 0

    async def _audit(self, request: web.Request) -> web.Response:
        return web.json_response({"ok": not self.discrepancies, "discrepancies": self.discrepancies})


def play(
    service: Service,
    played: Trace | None = None,
    *,
    gateway: str = "gateway",
    admin: str = "admin",
    speed: float = 0,
) -> Tally:
    """Replay against `service`, with little patience."""

    async def main() -> Tally:
        async with TestServer(service.app()) as server:
            patience = Patience(attempts_max=4, wait_seconds_first=0.001, wait_seconds_max=0.01)
            settings = Settings(service_url(str(server.make_url("/"))), admin, gateway, speed, patience)
            return await replay(played or trace(), settings, lambda: None)

    return asyncio.run(main())


def sums(tally: Tally) -> Counter[str]:
    total: Counter[str] = Counter()
    for totals in tally.operations.values():
        for column in ("jobs", "already_done", "reserved", "charged", "returned", "over_hold", "left_open"):
            total[column] += getattr(totals, column)
    return total


def test_a_trace_is_replayed_and_checked() -> None:
    service = Service()
    tally = play(service)
    assert tally.ok, tally.samples
    assert tally.commands == {
        "reserve": 210,
        "reserve again": 2,  # rows 97 and 194
        "settle": 204,  # all but 50, 100, 150, 200 (released), 103 and 206 (left to expire)
        "settle again": 2,  # rows 101 and 202
        "release": 4,
    }
    assert Counter(job["status"] for job in service.jobs.values()) == {
        "settled": 204,
        "released": 4,
        "reserved": 2,
    }
    total = sums(tally)
    assert total["jobs"] == 210
    assert total["reserved"] + total["over_hold"] == total["charged"] + total["returned"] + total["left_open"]
    assert total["over_hold"] > 0
    assert total["charged"] == sum(job.get("credits_charged") or 0 for job in service.jobs.values())
    assert total["left_open"] == sum(account["held"] for account in service.accounts.values())
    assert {account["granted"] for account in service.accounts.values()} == {GRANT_CREDITS}
    assert tally.balances_checked == len(service.accounts) == 26
    assert len(tally.latencies) == sum(tally.commands.values())
    assert 8 < service.open_max <= 64


def test_commands_of_a_job_stay_in_order() -> None:
    service = Service()
    play(service)
    for name in ("job-t-97", "job-t-101"):
        steps = [key.split("/")[-1] for key in service.seen if name in key]
        assert steps == ([name, name, "settle"] if name.endswith("97") else [name, "settle", "settle"])


def test_a_second_run_changes_nothing() -> None:
    service = Service()
    first = play(service)
    accounts = {name: dict(account) for name, account in service.accounts.items()}
    second = play(service)
    assert second.ok, second.samples
    assert service.accounts == accounts
    assert sums(second) == Counter(jobs=210, already_done=210)
    assert second.earlier_credits == sums(first)["charged"]
    assert second.commands["read"] == sum(
        job["status"] == "settled" and not job["stored"] for job in service.jobs.values()
    )


def test_a_second_run_after_the_expiries_changes_nothing() -> None:
    service = Service()
    play(service)
    service.expire("job-t-103")
    service.expire("job-t-206")
    tally = play(service)
    assert tally.ok, tally.samples
    assert sums(tally) == Counter(jobs=210, already_done=210)


def test_an_interrupted_run_is_taken_up() -> None:
    service = Service()
    play(service, trace(100))
    service.jobs["job-t-42"] |= {"status": "reserved"}  # as if its settlement had never been sent
    account = service.accounts["acct-0"]
    account["held"] += service.jobs["job-t-42"]["held_credits"]
    account["available"] += service.jobs["job-t-42"]["credits_charged"]
    account["available"] -= service.jobs["job-t-42"]["held_credits"]
    tally = play(service)
    assert tally.ok, tally.samples
    assert sums(tally)["already_done"] == 99
    assert service.jobs["job-t-42"]["status"] == "settled"


def test_a_service_that_is_busy_or_breaks_off_is_asked_again_for_the_same() -> None:
    def before(request: web.Request, count: int) -> web.Response | None:
        if count == 1 and "/jobs/" in request.path:
            match len(request.path) % 3, request.transport:
                case 0, transport if transport is not None:
                    transport.abort()
                case 1, _:
                    return refusal(503, "upstream_unavailable")
        return None

    service = Service(before)
    tally = play(service)
    assert tally.ok, tally.samples
    assert tally.retries > 50
    assert len(service.jobs) == ROWS


def test_an_answer_that_was_lost_is_no_second_charge() -> None:
    class Forgetful(Service):
        async def _settle(self, request: web.Request) -> web.Response:
            answer = await super()._settle(request)
            return refusal(503, "upstream_unavailable") if self.requests[_key(request)] == 1 else answer

        async def _reserve(self, request: web.Request) -> web.Response:
            answer = await super()._reserve(request)
            return refusal(503, "upstream_unavailable") if self.requests[_key(request)] == 1 else answer

    service = Forgetful()
    tally = play(service)
    assert tally.ok, tally.samples
    assert sums(tally)["charged"] == sum(job.get("credits_charged") or 0 for job in service.jobs.values())
    assert sums(tally)["already_done"] == 0


def _key(request: web.Request) -> str:
    return f"{request.method} {request.path}"


def test_a_service_that_goes_away_ends_the_replay() -> None:
    def before(request: web.Request, count: int) -> web.Response | None:
        return refusal(503, "upstream_unavailable") if "/jobs/job-t-150" in request.path else None

    tally = play(Service(before))
    assert tally.stopped is not None
    assert "is away" in tally.stopped
    assert not tally.ok
    assert tally.audit is None


@pytest.mark.parametrize("status", [402, 429, 500, 404])
def test_other_refusals_are_not_tried_again(status: int) -> None:
    def before(request: web.Request, count: int) -> web.Response | None:
        return refusal(status, "some_code") if request.path.endswith("/job-t-7") else None

    service = Service(before)
    tally = play(service)
    assert tally.refusals == {"some_code": 1}
    assert tally.problems == {Problem.REFUSED: 1}
    assert service.requests["PUT /v1/accounts/acct-7/jobs/job-t-7"] == 1
    assert service.requests["POST /v1/accounts/acct-7/jobs/job-t-7/settle"] == 0
    assert not tally.ok


def test_a_wrong_charge_is_found() -> None:
    service = Service()
    service.overcharge = 1
    tally = play(service, trace(30))
    assert tally.problems == {Problem.WRONG_CHARGE: 30}
    assert len(tally.samples) == 10
    assert all(sample.endswith("[charged wrongly]") for sample in tally.samples)
    first = play(service, trace(1))  # again, and the charge is as wrong as it was
    assert first.samples == ["job-t-1 was charged 12 credits, not 11 [charged wrongly]"]


def test_a_wrong_balance_is_found() -> None:
    service = Service()
    service.leak = 1
    assert play(service).problems == {Problem.BALANCE: 26}


def test_a_duplicate_that_answers_otherwise_is_found() -> None:
    def before(request: web.Request, count: int) -> web.Response | None:
        if count == 2 and request.path.endswith("/settle"):
            return web.json_response({"status": "settled", "credits_charged": 1})
        return None

    assert play(Service(before)).problems == {Problem.DUPLICATE: 2}


def test_a_hold_that_expired_too_early_is_a_loss() -> None:
    service = Service()
    play(service, trace(100))
    service.jobs["job-t-7"] |= {"status": "expired", "credits_charged": 0}
    tally = play(service, trace(100))
    assert tally.problems == {Problem.LOST: 1}


@pytest.mark.parametrize("answer", [b"not JSON", b"{}", b'{"status": 7}'])
def test_an_unreadable_answer_is_told_and_the_rest_goes_on(answer: bytes) -> None:
    def before(request: web.Request, count: int) -> web.Response | None:
        return web.Response(body=answer) if request.path.endswith("/job-t-7") else None

    service = Service(before)
    tally = play(service)
    assert tally.problems == {Problem.UNEXPECTED: 1}
    assert len(service.jobs) == ROWS - 1


def test_the_audit_has_the_last_word() -> None:
    service = Service()
    service.discrepancies = [{"check": "A2"}]
    tally = play(service)
    assert tally.audit is not None
    assert tally.audit.summary == '1 discrepancies: {"check": "A2"}'
    assert not tally.problems
    assert not tally.ok


@pytest.mark.parametrize(("admin", "gateway"), [("admin", "x"), ("x", "gateway"), ("gateway", "gateway")])
def test_a_refused_token_stops_before_any_change(admin: str, gateway: str) -> None:
    service = Service()
    with pytest.raises(ReplayStoppedError, match="the token is not accepted"):
        play(service, admin=admin, gateway=gateway)
    assert not service.accounts


def test_the_pace_of_the_trace_is_kept() -> None:
    service = Service()
    rows = tuple(Row(r, r * 10_000_000, 0, 10 * (r % 3)) for r in range(1, 31))  # reserved in 0.3 s
    tally = play(service, Trace("t", rows), speed=0.5)
    assert tally.ok, tally.samples
    assert 0.9 < tally.seconds < 3  # row 29 is closed at 0.49 s of the trace
    closes = [int(key.split("-")[-1].removesuffix("/settle")) for key in service.seen if "/settle" in key]
    assert closes.index(3) < closes.index(9) < closes.index(1) < closes.index(30) < closes.index(29)


def test_the_report_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    def before(request: web.Request, count: int) -> web.Response | None:
        return refusal(402, "insufficient_credits") if request.path.endswith("/job-t-7") else None

    report(Console(width=160), play(Service(before)))
    report(Console(width=160), Tally())
    printed = capsys.readouterr().out
    for text in ("voice_call_minute", "commands/s", "p99", "insufficient_credits 1", "because [insufficient"):
        assert text in printed


def unused_url() -> str:
    import socket

    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "t.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n")
    return path


def test_a_service_that_is_away_is_a_clear_error(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(file, unused_url(), 0, "admin", "gateway") == AWAY
    assert "is away" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "speed", "admin", "error"),
    [
        ("127.0.0.1:8000", 0, "admin", "is not the address of a service"),
        ("ftp://host", 0, "admin", "is not the address of a service"),
        ("http://127.0.0.1:8000", -1, "admin", "--speed"),
        ("http://127.0.0.1:8000", math.nan, "admin", "--speed"),
        ("http://127.0.0.1:8000", 0, "", "LEDGER_ADMIN_TOKEN"),
        ("http://127.0.0.1:8000", 0, "a\nb", "LEDGER_ADMIN_TOKEN"),
    ],
)
def test_bad_options_are_clear_errors(
    file: Path, capsys: pytest.CaptureFixture[str], url: str, speed: float, admin: str, error: str
) -> None:
    assert run(file, url, speed, admin, "gateway") == USAGE
    assert error in capsys.readouterr().err


def test_a_bad_file_is_a_clear_error(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(file.read_text() + "2023-11-16 18:15:47,many,44\n")
    assert run(file, unused_url(), 0, "admin", "gateway") == USAGE
    assert "line 3: ContextTokens 'many' is not a whole number" in capsys.readouterr().err
