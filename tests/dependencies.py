"""Asks the OSV database whether a pinned dependency has a known vulnerability: the last step of `make check`.

A machine that cannot reach the database learns so, in a line that is hard to overlook, and passes: nothing was found
wrong. `--required` (`make audit-dependencies`) fails there, for whoever wants an answer.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

LOCK: Final = Path(__file__).parents[1] / "requirements-dev.lock"
"""What is pinned for work on the project: all that runs in production, and the tools."""
DATABASE: Final = "https://api.osv.dev/v1/query"
ANSWER_SECONDS_MAX: Final = 15


class Vulnerability(msgspec.Struct):
    """What is known of a dependency."""

    id: str
    fix_versions: list[str]


class Dependency(msgspec.Struct):
    """A pinned dependency, and what is known of it; `skip_reason` where nothing could be asked."""

    name: str
    version: str = ""
    vulns: list[Vulnerability] = []
    skip_reason: str = ""


class Report(msgspec.Struct):
    """What pip-audit reports."""

    dependencies: list[Dependency]


class NotAudited(Exception):
    """The database gave no answer; the message says why."""


def audit(lock: Path, database: str) -> Report:
    """Return what the database knows of everything a lock file pins, or raise `NotAudited`."""
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", "--requirement", str(lock)]
    command += ["--vulnerability-service", "osv", "--osv-url", database, "--timeout", str(ANSWER_SECONDS_MAX)]
    command += ["--format", "json", "--progress-spinner", "off"]
    done = subprocess.run(command, capture_output=True, check=False)
    try:
        report = msgspec.json.decode(done.stdout, type=Report)
    except msgspec.DecodeError:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise NotAudited(said[-1] if said else f"pip-audit ended with {done.returncode}") from None
    if any(dependency.skip_reason for dependency in report.dependencies) or not report.dependencies:
        raise NotAudited(
            "; ".join(f"{each.name}: {each.skip_reason}" for each in report.dependencies if each.skip_reason)
        )
    return report


def main(arguments: list[str] | None = None) -> int:
    """Say what was found; return 1 for a vulnerability, and where an answer is required and there is none."""
    parser = argparse.ArgumentParser(prog="python -m tests.dependencies", description=__doc__)
    parser.add_argument("--required", action="store_true", help="fail where the database gives no answer")
    parser.add_argument("--lock", type=Path, default=LOCK)
    parser.add_argument("--database", default=DATABASE, help="what to ask, in the interface of OSV")
    options = parser.parse_args(arguments)
    try:
        report = audit(options.lock, options.database)
    except NotAudited as error:
        sys.stdout.write(f"DEPENDENCIES WERE NOT AUDITED: {error}\n")
        return int(options.required)
    for each in report.dependencies:
        for known in each.vulns:
            mended = ", ".join(known.fix_versions) or "no version yet"
            sys.stdout.write(f"{each.name} {each.version} has {known.id}, mended in {mended}\n")
    found = sum(len(each.vulns) for each in report.dependencies)
    sys.stdout.write(f"{len(report.dependencies)} dependencies audited, {found} known vulnerabilities\n")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
