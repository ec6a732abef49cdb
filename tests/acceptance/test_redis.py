"""A Redis beside the service: it comes, goes, hangs and forgets, and the ledger answers as before (section V)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ledger.embedded import ConnectionUrls
from ledger.failpoints import VARIABLE
from ledger.tokens import Role, variable_of
from tests.support.client import Client, connect
from tests.support.mirror import until
from tests.support.redis import RedisServer, running_redis
from tests.support.scraping import scrape
from tests.support.service import STOP_SECONDS_MAX, Service

PROGRAM = str(Path(sys.executable).with_name("gateway-ledger"))

FROZEN_SECONDS_MAX = 2.0
"""What an answer may take while Redis hangs, on a machine that does much else: less than any wait for Redis."""


@pytest.fixture
def serve(database: ConnectionUrls, services: Callable[..., Service]) -> Callable[..., Service]:
    """Starts services on one database, with a Redis."""

    def start(url: str, *options: str, **environment: str) -> Service:
        return services("--database-url", database.service, "--redis-url", url, *options, environment=environment)

    return start


def balance_in(server: RedisServer, account_id: str, prefix: str = "ledger:") -> dict[str, str]:
    with server.client() as client:
        found: Any = client.hgetall(f"{prefix}balance:{account_id}")
        return dict(found)


def told_in(server: RedisServer, environment: str = "live", prefix: str = "ledger:") -> list[Any]:
    with server.client() as client:
        found: Any = client.xrange(f"{prefix}events:{environment}")
        return [json.loads(fields["event"]) for _, fields in found]


async def until_it_shows(server: RedisServer, client: Client, account_id: str) -> None:
    view = await client.balance(account_id)
    wanted = {name: str(view[name]) for name in ("available", "held", "overdraft")}
    await until(lambda: balance_in(server, account_id).items() >= wanted.items(), f"{account_id}: {wanted}")


async def expire(client: Client, account_id: str, *jobs: str) -> None:
    """Let jobs expire, which raises an event each."""
    for job in jobs:
        assert (await client.reserve(account_id, job, ttl_seconds=1)).status == 201
    await asyncio.sleep(1)  # The deadline is a second of the database's clock.
    await until_expired(client, account_id, *jobs)


async def until_expired(client: Client, account_id: str, *jobs: str) -> None:
    await client.call("POST", "/v1/sweeps/expire_holds")
    for job in jobs:
        answer = await client.get(f"/v1/accounts/{account_id}/jobs/{job}")
        assert answer.body["status"] == "expired", answer


async def test_events_and_balances_of_two_replicas(serve: Callable[..., Service], redis_server: RedisServer) -> None:
    first = serve(redis_server.url, "--no-sweeps", LEDGER_REDIS_PREFIX="gw:")
    tokens = {variable_of(role): token for role, token in first.tokens.items()}
    second = serve(redis_server.url, "--no-sweeps", LEDGER_REDIS_PREFIX="gw:", **tokens)
    async with connect(first) as one, connect(second) as other:
        await one.open_account("a", 1_000)
        for n in range(6):
            assert (await (one, other)[n % 2].reserve("a", f"j{n}", ttl_seconds=1)).status == 201
        await asyncio.sleep(1)
        await other.call("POST", "/v1/sweeps/expire_holds")
        shown = (await one.get("/v1/events")).body["data"]
        assert len(shown) == 6
        await until(lambda: told_in(redis_server, prefix="gw:") == shown)
        assert (await one.reserve("a", "open")).status == 201
        await until(lambda: balance_in(redis_server, "a", "gw:").get("held") == "11")
        assert balance_in(redis_server, "a", "gw:")["available"] == "989"
        exposed = (await other.get("/metrics")).body.decode()
        assert 'ledger_redis_up{work="streams"} 1.0' in exposed
        assert 'ledger_redis_published_total{what="event"}' in exposed
        assert 'ledger_redis_published_total{what="balance"}' in exposed
    assert first.stop() == 0


async def test_redis_hangs(serve: Callable[..., Service], redis_server: RedisServer) -> None:
    """While it answers nobody, commands and reads are answered at the usual speed, and then it catches up."""
    service = serve(redis_server.url, "--no-sweeps")
    async with connect(service) as client:
        await client.open_account("a", 100_000)
        await until_it_shows(redis_server, client, "a")
        redis_server.freeze()
        longest = 0.0
        for n in range(60):
            begun = time.perf_counter()
            assert (await client.reserve("a", f"j{n}")).status == 201
            assert (await client.settle("a", f"j{n}")).status == 200
            assert (await client.get("/health/ready")).status == 200
            longest = max(longest, time.perf_counter() - begun)
        assert longest < FROZEN_SECONDS_MAX
        await expire(client, "a", "lost-1", "lost-2")

        async def is_down() -> bool:
            return (await scrape(client)).value("ledger_redis_up", work="streams") == 0

        await until(is_down)
        redis_server.thaw()
        await until_it_shows(redis_server, client, "a")
        assert balance_in(redis_server, "a")["available"] == str(100_000 - 60 * 11)
        await until(lambda: [event["data"]["job_id"] for event in told_in(redis_server)] == ["lost-1", "lost-2"])
        assert "redis_away" in service.log.read_text()
        redis_server.freeze()
        begun = time.monotonic()
        assert service.stop() == 0
        assert time.monotonic() - begun < 10  # Stopping waits for Redis no longer than a second or two.


async def test_redis_answers_and_refuses_to_write(serve: Callable[..., Service], redis_server: RedisServer) -> None:
    """Full: what only reads goes on, and no good answer hides that events are not published."""
    service = serve(redis_server.url, "--no-sweeps")
    streams, walk = {"work": "streams"}, {"work": "walk"}
    async with connect(service) as client:
        await client.open_account("a", 1_000)
        await until_it_shows(redis_server, client, "a")

        async def is_refused() -> bool:
            return (await scrape(client)).value("ledger_redis_up", **streams) == 0

        async def is_well() -> bool:
            return (await scrape(client)).value("ledger_redis_up", **streams) == 1

        async def has_walked() -> bool:
            return (await scrape(client)).value(SUCCESS, **walk) > 0

        await until(is_well)
        await until(has_walked)  # The first walk writes; those after it find that there is nothing to do.
        configure(redis_server, maxmemory=1)
        await expire(client, "a", "lost")
        await until(is_refused)
        first = last = await scrape(client)
        while last.value(SUCCESS, **walk) < first.value(SUCCESS, **walk) + 3:
            await asyncio.sleep(0.1)
            last = await scrape(client)
            assert last.value("ledger_redis_up", **streams) == 0
            assert last.value("ledger_redis_up", **walk) == 1
        assert last.value(SUCCESS, **streams) == first.value(SUCCESS, **streams)
        configure(redis_server, maxmemory=0)
        await until(is_well)
        assert [event["data"]["job_id"] for event in told_in(redis_server)] == ["lost"]
        assert (await scrape(client)).value(SUCCESS, **streams) > last.value(SUCCESS, **streams)


async def test_a_sweep_of_its_own_tells_of_what_it_did_and_walks_through_nobody_else(
    database: ConnectionUrls, services: Callable[..., Service], redis_server: RedisServer
) -> None:
    service = services("--database-url", database.service, "--no-sweeps")
    async with connect(service) as client:
        for name in ("a", "b"):
            await client.open_account(name, 1_000)
        assert (await client.reserve("a", "lost", ttl_seconds=1)).status == 201
        await asyncio.sleep(1)  # The deadline is a second of the database's clock.
        sweeping = await asyncio.create_subprocess_exec(
            *(PROGRAM, "sweep", "expire_holds", "--database-url", database.service),
            env={"LEDGER_REDIS_URL": redis_server.url},
        )
        assert await sweeping.wait() == 0
        assert [event["data"]["job_id"] for event in told_in(redis_server)] == ["lost"]
        assert balance_in(redis_server, "a")["available"] == "1000"
    with redis_server.client() as redis:
        assert sorted(redis.keys("*")) == ["ledger:balance:a", "ledger:events:live"]


SUCCESS = "ledger_redis_last_success_timestamp_seconds"


def configure(server: RedisServer, **options: int) -> None:
    with server.client() as client:
        for name, value in options.items():
            client.config_set(name, value)


async def test_redis_is_not_there_at_the_start(serve: Callable[..., Service]) -> None:
    with running_redis() as server:
        server.kill()
        service = serve(server.url, "--no-sweeps")
        async with connect(service) as client:
            await client.open_account("a", 1_000)
            assert (await client.reserve("a", "j")).status == 201
            await until(lambda: "redis_away" in service.log.read_text())
            server.start()
            await until_it_shows(server, client, "a")
            await until(lambda: "redis_back" in service.log.read_text())


@pytest.mark.parametrize("options", [(), ("--appendonly", "yes")], ids=["forgets", "appends"])
async def test_redis_is_killed_under_load(serve: Callable[..., Service], options: tuple[str, ...]) -> None:
    with running_redis(*options) as server:
        service = serve(server.url, "--no-sweeps")
        async with connect(service) as client:
            names = [f"a{n}" for n in range(5)]
            for name in names:
                await client.open_account(name, 50_000)

            async def work(name: str) -> None:
                for n in range(40):
                    assert (await client.reserve(name, f"j{n}")).status == 201
                    assert (await client.settle(name, f"j{n}")).status == 200
                assert (await client.reserve(name, "lost", ttl_seconds=1)).status == 201

            async def kill() -> None:
                await until(lambda: balance_in(server, "a0").get("available", "50000") != "50000")
                server.kill()
                await asyncio.sleep(0.5)
                server.start()

            await asyncio.gather(kill(), *(work(name) for name in names))
            await asyncio.sleep(1)
            for name in names:
                await until_expired(client, name, "lost")
            for name in names:
                await until_it_shows(server, client, name)
            shown = (await client.get("/v1/events")).body["data"]
            assert len(shown) == 5
            await until(lambda: told_in(server) == shown)


async def test_the_service_dies_before_it_publishes(serve: Callable[..., Service]) -> None:
    """It is killed while Redis is away, with all it committed still to be published: the next makes up for it."""
    with running_redis("--appendonly", "yes", "--appendfsync", "always") as server:
        service = serve(server.url, "--no-sweeps")
        async with connect(service) as client:
            await client.open_account("a", 1_000)
            await until_it_shows(server, client, "a")
            server.kill()
            await client.open_account("b", 500)
            assert (await client.reserve("a", "j")).status == 201
            await expire(client, "a", "lost")
        service.kill()
        server.start()
        assert balance_in(server, "a")["available"] == "1000"
        assert balance_in(server, "b") == {}
        async with connect(serve(server.url, "--no-sweeps")) as client:
            await until_it_shows(server, client, "a")
            await until_it_shows(server, client, "b")
            await until(lambda: [event["data"]["job_id"] for event in told_in(server)] == ["lost"])


async def test_the_service_dies_right_after_it_published(
    serve: Callable[..., Service], redis_server: RedisServer
) -> None:
    """The stream itself says where it is: the next service adds what is missing, and nothing a second time (V3)."""
    dying = serve(redis_server.url, "--no-sweeps", **{VARIABLE: "publish=kill#2"})
    async with connect(dying) as client:
        await client.open_account("a", 10)
        assert (await client.reserve("a", "j0")).code == "insufficient_credits"
        await until(lambda: len(told_in(redis_server)) == 1)
        with contextlib.suppress(aiohttp.ClientError):  # It may die before the last of these is answered.
            for n in range(1, 6):
                await client.grant("a", f"g{n}", 1)
                await client.reserve("a", f"j{n}", ("image_analysis", 1))
        assert await asyncio.to_thread(dying.process.wait, STOP_SECONDS_MAX) == -9
    published = told_in(redis_server)
    assert len(published) > 1
    async with connect(serve(redis_server.url, "--no-sweeps")) as client:
        await client.open_account("b")
        assert (await client.reserve("b", "j")).code == "insufficient_credits"
        shown = (await client.get("/v1/events")).body["data"]
        assert shown[: len(published)] == published
        assert len(shown) > len(published)
        await until(lambda: told_in(redis_server) == shown)


async def test_a_stop_publishes_what_was_committed_last(
    serve: Callable[..., Service], redis_server: RedisServer
) -> None:
    service = serve(redis_server.url, "--no-sweeps")
    async with connect(service) as client:
        for n in range(30):
            await client.open_account(f"a{n}", 100 + n)
    assert service.stop() == 0
    for n in range(30):
        assert balance_in(redis_server, f"a{n}")["available"] == str(100 + n)


ACL = (
    "~ledger:*",
    "&ledger:balances",
    "-@all",
    *("+ping", "+info", "+client|setname"),
    *("+evalsha", "+script|load", "+script|exists"),
    *("+exists", "+xinfo|stream", "+xadd", "+xrange", "+xdel"),
    *("+hmget", "+hlen", "+hset", "+del", "+expire", "+publish", "+get", "+set"),
)
"""What the README says that the service needs."""


async def test_a_redis_user_with_nothing_but_what_is_needed(
    serve: Callable[..., Service], redis_server: RedisServer
) -> None:
    with redis_server.client() as client:
        version: Any = client.info("server")
        if int(version["redis_version"].split(".")[0]) < 7:
            pytest.skip("this redis-server has no rules for subcommands")
        assert client.execute_command("ACL", "SETUSER", "gateway-ledger", "on", ">s3cret", *ACL)
    service = serve(f"{redis_server.url.replace('unix://', 'unix://gateway-ledger:s3cret@')}", "--no-sweeps")
    async with connect(service) as http:
        await http.open_account("a", 1_000)
        await expire(http, "a", "lost")
        await until_it_shows(redis_server, http, "a")
        await until(lambda: len(told_in(redis_server)) == 1)
        with redis_server.client() as client:
            await until(lambda: client.get("ledger:walked"))
            denied: Any = client.execute_command("ACL", "LOG")
            assert denied == []
    log = service.log.read_text()
    assert "s3cret" not in log
    assert "redis_" not in log


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://h", "LEDGER_REDIS_URL: expected"),
        ("redis://:pa55word@h:port/0", "LEDGER_REDIS_URL: not a URL"),
        ("redis://:pa55word@h/0?colour=red", "LEDGER_REDIS_URL: .*colour"),
    ],
)
def test_a_url_that_is_none(database: ConnectionUrls, tmp_path: Path, url: str, reason: str) -> None:
    environment = {**os.environ, "LEDGER_ADMIN_TOKEN": "t" * 40, "LEDGER_PORT": "0"}
    command = [PROGRAM, "serve", "--database-url", database.service, "--redis-url", url]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode in (1, 2)
    assert "pa55word" not in ended.stderr
    assert re.search(reason, ended.stderr), ended.stderr


# -- events tail ---------------------------------------------------------------------------------------------------


class Tail:
    """A running `events tail`, and the lines it has printed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def line(self) -> Any:
        assert self._process.stdout is not None
        async with asyncio.timeout(60):
            return json.loads(await self._process.stdout.readline())

    async def said(self) -> str:
        assert self._process.stderr is not None
        async with asyncio.timeout(60):
            return (await self._process.stderr.readline()).decode().strip()

    async def interrupt(self) -> tuple[int, str]:
        """End it as Ctrl-C does; return its exit code and what it said last."""
        self._process.send_signal(signal.SIGINT)
        return await self.end()

    async def end(self) -> tuple[int, str]:
        """Wait for its end; return its exit code and what it said last."""
        async with asyncio.timeout(60):
            _, said = await self._process.communicate()
        assert self._process.returncode is not None
        return self._process.returncode, said.decode().strip()


@contextlib.asynccontextmanager
async def tailing(service: Service, *options: str, token: str | None = None) -> AsyncIterator[Tail]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LEDGER_")}
    environment["LEDGER_READER_TOKEN"] = token or service.tokens[Role.READER]
    process = await asyncio.create_subprocess_exec(
        *(PROGRAM, "events", "tail", "--url", service.url, *options),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield Tail(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def expire_at_once(client: Client, account_id: str, *jobs: str) -> None:
    """The same as `expire`, with a simulated clock."""
    for job in jobs:
        assert (await client.reserve(account_id, job, ttl_seconds=1)).status == 201
    later = (await client.reserve(account_id, f"{jobs[0]}-later", ttl_seconds=2)).body["expires_at"]
    await client.call("PUT", "/v1/clock", {"now": later})
    await until_expired(client, account_id, *jobs)


async def test_tail_prints_what_comes(server: Service) -> None:
    async with connect(server) as client:
        for name in ("a", "b"):
            await client.open_account(name, 1_000)
        await expire_at_once(client, "a", "old")
        before = (await client.get("/v1/events")).body
        async with tailing(server) as all_of_it, tailing(server, "--account", "b") as of_one:
            assert await all_of_it.said() == await of_one.said() == "waiting for events"
            await expire_at_once(client, "a", "new")
            await expire_at_once(client, "b", "other")
            new = (await client.get(f"/v1/events?after={before['next_cursor']}")).body["data"]
            assert [await all_of_it.line() for _ in new] == new
            of_b = [event for event in new if event["account_id"] == "b"]
            assert [await of_one.line() for _ in of_b] == of_b
            code, said = await all_of_it.interrupt()
            assert code == 0
            assert said.startswith("to go on from here: --after ")
            assert (await of_one.interrupt())[0] == 0
        async with tailing(server, "--from-start") as whole:
            for event in [*before["data"], *new]:
                assert await whole.line() == event
        await expire_at_once(client, "a", "last")
        async with tailing(server, "--after", said.split()[-1]) as rest:
            event = await rest.line()
            while event["data"]["job_id"] != "last":
                event = await rest.line()
            assert event not in new


async def test_tail_outlives_a_restart(database: ConnectionUrls, services: Callable[..., Service]) -> None:
    first = services("--database-url", database.service, "--simulated-clock")
    async with connect(first) as client:
        await client.open_account("a", 1_000)
    async with tailing(first) as tail:
        assert await tail.said() == "waiting for events"
        first.stop()
        assert (await tail.said()).startswith("the service is away")
        again = {variable_of(role): token for role, token in first.tokens.items()}
        port = first.url.rpartition(":")[2]
        second = services("--database-url", database.service, "--simulated-clock", "--port", port, environment=again)
        async with connect(second) as client:
            await expire_at_once(client, "a", "j")
        assert (await tail.line())["data"]["job_id"] == "j"


@pytest.mark.parametrize(
    ("options", "token", "message"),
    [
        ((), "wrong", "authentication_required"),
        (("--after", "nonsense"), None, "validation_error"),
        (("--after", "x", "--from-start"), None, "give either"),
        (("--url", "ftp://x"), None, "is not the address of a service"),
    ],
)
async def test_tail_cannot_begin(server: Service, options: tuple[str, ...], token: str | None, message: str) -> None:
    async with tailing(server, *options, token=token) as tail:
        code, said = await tail.end()
    assert code in (1, 2)
    assert message in said
