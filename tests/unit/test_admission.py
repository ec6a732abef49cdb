"""What is let in, how long the others wait to be told so, and whose room it is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ledger.api.admission import Admission, Pace, account_of
from ledger.api.edge import PROBES
from ledger.api.openapi.operations import OPERATIONS


def test_refusals_are_spread_evenly_and_nobody_waits_too_long() -> None:
    pace = Pace(per_second=100, seconds_max=0.5)
    waits = [pace.wait_seconds(now=10.0) for _ in range(100)]
    assert waits[0] == 0
    assert waits[:50] == pytest.approx([n / 100 for n in range(50)])
    assert max(waits) == pytest.approx(0.5)
    assert pace.wait_seconds(now=11.0) == 0


@pytest.mark.parametrize(
    ("path", "account"),
    [
        ("/v1/accounts/acme/jobs/j/settle", "acme"),
        ("/v1/accounts/acme", "acme"),
        ("/v1/accounts/", ""),
        ("/v1/batch", ""),
        ("/", ""),
    ],
)
def test_a_request_belongs_to_the_account_that_its_path_names(path: str, account: str) -> None:
    assert account_of(path) == account


class Caller:
    """One request, to an application that reads its body and then waits to be let go."""

    def __init__(self, path: str, *chunks: bytes) -> None:
        self.scope: Any = {"type": "http", "path": path, "headers": [], "state": {"request_id": "req"}}
        self._chunks = list(chunks)
        self.sent: list[dict[str, Any]] = []

    @property
    def status(self) -> int | None:
        return self.sent[0]["status"] if self.sent else None

    async def receive(self) -> Any:
        body = self._chunks.pop(0) if self._chunks else b""
        return {"type": "http.request", "body": body, "more_body": bool(self._chunks)}

    async def send(self, message: Any) -> None:
        self.sent.append(message)


class Application:
    """Reads a body to its end, waits until it may go on, and answers."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.inside = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.inside += 1
        while (await receive())["more_body"]:
            pass
        await self.go_on.wait()
        self.inside -= 1
        await send({"type": "http.response.start", "status": 200, "headers": []})


def start(admission: Admission, caller: Caller) -> asyncio.Task[None]:
    return asyncio.create_task(admission(caller.scope, caller.receive, caller.send))


async def test_room_is_given_back_however_a_request_ends() -> None:
    application = Application()
    admission = Admission(application, requests=4, body_bytes=100, doc_base="http://docs")
    first, second, third = (Caller("/v1/accounts/a", b"x" * 20) for _ in range(3))
    tasks = [start(admission, first), start(admission, second)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert application.inside == 2
    await start(admission, third)
    assert third.status == 503
    tasks[0].cancel()
    await asyncio.wait(tasks[:1])
    tasks.append(start(admission, Caller("/v1/accounts/a")))
    other = Caller("/v1/accounts/b")
    tasks.append(start(admission, other))
    application.go_on.set()
    await asyncio.wait(tasks)
    assert other.status == 200
    assert admission._requests.taken == admission._bodies.taken == 0


async def test_a_body_that_does_not_fit_ends_its_request_alone() -> None:
    application = Application()
    application.go_on.set()
    admission = Admission(application, requests=4, body_bytes=100, doc_base="http://docs")
    with pytest.raises(Exception, match="too much is being received"):
        await start(admission, Caller("/v1/accounts/a", b"x" * 40, b"x" * 40))
    assert admission._requests.taken == admission._bodies.taken == 0
    fits = Caller("/v1/accounts/a", b"x" * 40)
    await start(admission, fits)
    assert fits.status == 200


def test_whatever_may_be_turned_away_is_described_so() -> None:
    described = {operation.path for operation in OPERATIONS if "upstream_unavailable" not in operation.all_codes}
    assert described <= PROBES
