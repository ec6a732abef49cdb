"""Jobs: reserve, settle, release, refund, and many of them at once. Raw ASGI routes, since they are the hot ones.

`JobRoutes` stands in front of Litestar and takes these few paths; the rest passes through. A request is a body decoded
by msgspec, a command, its outcome, and a reply: measured, a framework's own handling costs more than all of that.
(Litestar's own `@asgi` routes cannot have path parameters: version 2.25 looks those up by the method.)
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Final, NamedTuple, cast
from urllib.parse import parse_qsl

import msgspec
from litestar import Litestar
from litestar.enums import ScopeType
from litestar.types import Receive, Scope, Send
from msgspec import Meta, Struct

from ledger.api import bodies
from ledger.api.errors import ApiError, answer_of, invalid, not_found, of_exception, of_refusal
from ledger.api.http import (
    BATCH_BYTES_MAX,
    Reply,
    authenticate,
    count_error,
    encode,
    error_reply,
    read_body,
    reply,
    request_id_of,
    send_reply,
)
from ledger.api.services import Services
from ledger.core.commands import (
    ENVIRONMENTS,
    Environment,
    Outcome,
    Refund,
    Refunded,
    Refused,
    Release,
    Released,
    Replayed,
    Reserve,
    Reserved,
    Settle,
    Settled,
)
from ledger.engine import Unavailable
from ledger.queries import jobs as job_queries
from ledger.tokens import Role

JobCommand = Reserve | Settle | Release | Refund

COMMANDS_MAX: Final = 1_000

_read_reserve = bodies.decoder(bodies.ReserveBody)
_read_settle = bodies.decoder(bodies.SettleBody)
_read_release = bodies.decoder(bodies.ReleaseBody)
_read_refund = bodies.decoder(bodies.RefundBody)


# -- one command ---------------------------------------------------------------------------------------------------


def _reserve(account_id: str, job_id: str, body: bytes) -> Reserve:
    return bodies.reserve_command(account_id, job_id, _read_reserve(body))


def _settle(account_id: str, job_id: str, body: bytes) -> Settle:
    return bodies.settle_command(account_id, job_id, _read_settle(body))


def _release(account_id: str, job_id: str, body: bytes) -> Release:
    return bodies.release_command(account_id, job_id, _read_release(body or b"{}"))


def _refund(account_id: str, job_id: str, body: bytes) -> Refund:
    return bodies.refund_command(account_id, job_id, _read_refund(body))


Maker = Callable[[str, str, bytes], JobCommand]
Names = tuple[str, str]
"""The account and the job of a path, as they were sent."""
Handler = Callable[[Services, Names, Scope, Receive], Awaitable[Reply]]


class Route(NamedTuple):
    """A route: the template of its path, as metrics and the log call it, and what its methods do."""

    template: str
    methods: Mapping[str, Handler]


async def _carry_out(make: Maker, services: Services, names: Names, scope: Scope, receive: Receive) -> Reply:
    authenticate(scope, services.settings.tokens, Role.GATEWAY)
    account_id, job_id = _identifiers(names)
    command = make(account_id, job_id, await read_body(scope, receive))
    outcome = await services.engine.submit(command)
    status, body = await _answer(services, command, outcome)
    scope["state"]["outcome"] = _named(outcome)
    return reply(status, body)


def _identifiers(names: Names) -> tuple[str, str]:
    account_id, job_id = names
    return bodies.identifier("account_id", account_id), bodies.identifier("job_id", job_id)


async def _answer(services: Services, command: JobCommand, outcome: Outcome) -> tuple[int, object]:
    """Return the status and body of an outcome; raise the error of a refusal."""
    match outcome:
        case Reserved():
            return (201 if outcome.created else 200), outcome.reservation
        case Settled() | Released():
            return 200, outcome
        case Refunded():
            return (201 if outcome.created else 200), outcome.refund
        case Refused():
            raise of_refusal(outcome)
        case Replayed():
            return 200, await _replayed(services, command.account_id, outcome.job_id)
        case _:
            raise TypeError(f"{type(outcome).__name__} is no outcome of a job's command")


def _named(outcome: Outcome) -> str:
    """Name what came of a command that was not refused, for the log."""
    if isinstance(outcome, Reserved | Refunded) and not outcome.created:
        return "repeated"
    return type(outcome).__name__.lower()


async def _replayed(services: Services, account_id: str, job_id: str) -> object:
    """Return the whole job as `GET` gives it: a request that was served before is answered by it (J10)."""
    job = await job_queries.job(services.primary, account_id, job_id)
    if job is None:
        raise not_found(f"job {job_id}")
    return msgspec.structs.replace(job, replayed=True)


async def _show(services: Services, names: Names, scope: Scope, receive: Receive) -> Reply:
    authenticate(scope, services.settings.tokens, Role.READER)
    account_id, job_id = _identifiers(names)
    environment = job_environment(scope["query_string"])
    job = await job_queries.job(services.reading, account_id, job_id, environment)
    if job is None:
        raise not_found(f"job {job_id}")
    return reply(200, job)


def job_environment(query: bytes) -> Environment | None:
    """Return the environment that a reader of one job asks for; raise `validation_error` for anything else."""
    given = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    bodies.known_parameters([name for name, _ in given], "environment")
    if len(given) > 1:
        raise invalid("environment: given more than once")
    environment = dict(given).get("environment")
    if environment is None:
        return None
    for known in ENVIRONMENTS:
        if environment == known:
            return known
    raise invalid("environment: live or test is expected")


# -- many commands -------------------------------------------------------------------------------------------------


class ReserveItem(bodies.ReserveBody, tag_field="command", tag="reserve", forbid_unknown_fields=True, kw_only=True):
    """A reservation in a batch."""

    account_id: bodies.Identifier
    job_id: bodies.Identifier


class SettleItem(bodies.SettleBody, tag_field="command", tag="settle", forbid_unknown_fields=True, kw_only=True):
    """A settlement in a batch."""

    account_id: bodies.Identifier
    job_id: bodies.Identifier


class ReleaseItem(bodies.ReleaseBody, tag_field="command", tag="release", forbid_unknown_fields=True, kw_only=True):
    """A release in a batch."""

    account_id: bodies.Identifier
    job_id: bodies.Identifier


class RefundItem(bodies.RefundBody, tag_field="command", tag="refund", forbid_unknown_fields=True, kw_only=True):
    """A refund in a batch."""

    account_id: bodies.Identifier
    job_id: bodies.Identifier


Item = ReserveItem | SettleItem | ReleaseItem | RefundItem


class BatchBody(Struct, forbid_unknown_fields=True):
    """`POST /v1/batch`. Each command is decoded alone, so that a shapeless one does not touch its neighbours."""

    commands: Annotated[list[msgspec.Raw], Meta(min_length=1, max_length=COMMANDS_MAX)]


class Result(Struct, frozen=True):
    """What one command of a batch came to: what its own route would answer."""

    status: int
    body: object


Named = tuple[Result, str]
"""A result, and what it is called in the log."""


_read_batch = bodies.decoder(BatchBody, refuse_nul=False)
_read_item = bodies.decoder(cast("type[Item]", Item))


_SPACE: Final = re.compile(r"[ \t\r\n]*")
_BEFORE: Final = re.compile(r'[ \t\r\n]*\{[ \t\r\n]*"commands"[ \t\r\n]*:[ \t\r\n]*\[')
_BEHIND: Final = re.compile(r"\][ \t\r\n]*\}[ \t\r\n]*")
_scan = json.JSONDecoder().raw_decode


def _commands(body: bytes) -> Sequence[msgspec.Raw]:
    """Return the commands of a batch, each as it was sent."""
    try:
        return _read_batch(body).commands
    except ApiError:
        commands = _split(body) if rb"\ud" in body.lower() else None
        if commands is None:
            raise
        return commands


def _split(body: bytes) -> list[msgspec.Raw] | None:
    """Return the commands of a batch that msgspec cannot read, or None where it is no batch.

    One with a lone surrogate in its text is refused alone, and not its neighbours with it.
    """
    try:
        text = body.decode()
        before = _BEFORE.match(text)
        commands: list[msgspec.Raw] = []
        position = before.end() if before else len(text)
        while len(commands) < COMMANDS_MAX:
            begin = _end_of(_SPACE, text, position)
            end = _scan(text, begin)[1]
            commands.append(msgspec.Raw(text[begin:end].encode()))
            position = _end_of(_SPACE, text, end) + 1
            if text[position - 1 : position] != ",":
                return commands if _BEHIND.fullmatch(text, position - 1) else None
    except (ValueError, RecursionError):
        pass
    return None


def _end_of(pattern: re.Pattern[str], text: str, position: int) -> int:
    found = pattern.match(text, position)
    return found.end() if found else position


def _item_command(raw: msgspec.Raw) -> JobCommand:
    item = _read_item(bytes(raw))
    match item:
        case ReserveItem():
            return bodies.reserve_command(item.account_id, item.job_id, item)
        case SettleItem():
            return bodies.settle_command(item.account_id, item.job_id, item)
        case ReleaseItem():
            return bodies.release_command(item.account_id, item.job_id, item)
        case _:
            return bodies.refund_command(item.account_id, item.job_id, item)


async def _batch(services: Services, names: Names, scope: Scope, receive: Receive) -> Reply:
    """Submit every command that has a shape, in order, and answer each in its place."""
    authenticate(scope, services.settings.tokens, Role.GATEWAY)
    commands = _commands(await read_body(scope, receive, BATCH_BYTES_MAX))
    submitted = [_submit(services, raw) for raw in commands]
    waiting = [future for _, future in submitted if isinstance(future, asyncio.Future)]
    if waiting:
        await asyncio.wait(waiting)
    named = [await _result(services, command, future, scope) for command, future in submitted]
    scope["state"]["outcomes"] = Counter(name for _, name in named)
    return Reply(200, encode({"results": [result for result, _ in named]}))


def _submit(services: Services, raw: msgspec.Raw) -> tuple[JobCommand | None, asyncio.Future[Outcome] | Exception]:
    try:
        command = _item_command(raw)
        return command, services.engine.submit(command)
    except (ApiError, Unavailable) as error:
        return None, error


async def _result(
    services: Services,
    command: JobCommand | None,
    submitted: asyncio.Future[Outcome] | Exception,
    scope: Scope,
) -> Named:
    error = submitted if isinstance(submitted, Exception) else submitted.exception()
    if error is None and command is not None and isinstance(submitted, asyncio.Future):
        try:
            outcome = submitted.result()
            return Result(*await _answer(services, command, outcome)), _named(outcome)
        except Exception as refusal:  # noqa: BLE001 - its neighbours are committed, and are told so
            error = refusal
    assert isinstance(error, Exception)
    known = of_exception(error)
    count_error(known)
    return Result(known.status, answer_of(known, request_id_of(scope), services.settings.doc_base_url)), known.code


# -- the routes ----------------------------------------------------------------------------------------------------

_PATH: Final = "/v1/accounts/{account_id}/jobs/{job_id}"

_JOB: Final = Route(_PATH, {"PUT": partial(_carry_out, _reserve), "GET": _show})
_ACTIONS: Final = {
    "settle": Route(f"{_PATH}/settle", {"POST": partial(_carry_out, _settle)}),
    "release": Route(f"{_PATH}/release", {"POST": partial(_carry_out, _release)}),
    "refunds": Route(f"{_PATH}/refunds", {"POST": partial(_carry_out, _refund)}),
}
_BATCH: Final = Route("/v1/batch", {"POST": _batch})


class JobRoutes:
    """ASGI application: answers `/v1/batch` and `/v1/accounts/…/jobs/…`, and hands everything else to Litestar."""

    def __init__(self, app: Litestar) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        found = _find(scope["path"]) if scope["type"] == ScopeType.HTTP else None
        if found is None:
            await self._app(scope, receive, send)
            return
        services: Services = self._app.state.services
        try:
            answer = await _dispatch(services, *found, scope, receive)
        except Exception as error:  # noqa: BLE001 - whatever it is has an answer, and is logged where it is our defect
            answer = error_reply(error, scope, services.settings.doc_base_url)
        await send_reply(send, answer)


def _find(path: str) -> tuple[Route, Names] | None:
    if path == "/v1/batch":
        return _BATCH, ("", "")
    match path.split("/"):
        case ["", "v1", "accounts", account_id, "jobs", job_id] if job_id:
            return _JOB, (account_id, job_id)
        case ["", "v1", "accounts", account_id, "jobs", job_id, action] if action in _ACTIONS:
            return _ACTIONS[action], (account_id, job_id)
    return None


async def _dispatch(services: Services, route: Route, names: Names, scope: Scope, receive: Receive) -> Reply:
    assert scope["type"] == ScopeType.HTTP
    handler = route.methods.get(str(scope["method"]))
    if handler is None:
        allowed = ", ".join(route.methods)
        raise ApiError("method_not_allowed", f"{allowed} is allowed here", headers={"Allow": allowed})
    scope["path_template"] = route.template
    scope["path_params"] = {"account_id": names[0], "job_id": names[1]}
    return await handler(services, names, scope, receive)
