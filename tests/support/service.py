"""The real service as a process of its own, for tests that talk to it over HTTP or kill it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from ledger.tokens import Role, new_token, variable_of

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 40.0
_ANSWERS = re.compile(r"answers at (http://\S+)")


@dataclass
class Service:
    """A service that answers at `url`, with one token of each role."""

    url: str
    tokens: dict[Role, str]
    process: subprocess.Popen[bytes]
    log: Path

    def headers(self, role: Role = Role.ADMIN) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[role]}"}

    def stop(self) -> int:
        """Stops the service in order and returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_SECONDS_MAX)

    def kill(self) -> None:
        """Ends the service as a crash would."""
        self.process.kill()
        self.process.wait(STOP_SECONDS_MAX)


def start_service(
    folder: Path, *options: str, environment: dict[str, str] | None = None, stderr: int | None = None
) -> Service:
    """Starts `gateway-ledger serve` with options such as `--database-url`, and returns when it answers.

    Args:
        folder: where its output goes.
        options: what follows `serve`; the port is a free one unless it is among them.
        environment: more variables; the tokens are new ones unless they are among them.
        stderr: what its log is written to, in place of a file in the folder.
    """
    tokens = {role: (environment or {}).get(variable_of(role)) or new_token(role) for role in Role}
    variables = {
        **{name: value for name, value in os.environ.items() if not name.startswith("LEDGER_")},
        **{variable_of(role): token for role, token in tokens.items()},
        "LEDGER_PORT": "0",
        **(environment or {}),
    }
    output, log = folder / "service.out", folder / "service.log"
    command = [str(Path(sys.executable).with_name("gateway-ledger")), "serve", *options]
    with output.open("wb") as out, log.open("ab") as err:
        process = subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL, stdout=out, stderr=stderr or err)
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline and process.poll() is None:
        if found := _ANSWERS.search(output.read_text()):
            return Service(found[1], tokens, process, log)
        time.sleep(0.05)
    process.kill()
    process.wait()
    raise AssertionError(f"the service did not start:\n{output.read_text()}{log.read_text()}")
