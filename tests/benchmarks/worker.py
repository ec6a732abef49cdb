"""Work that is measured in a process of its own: it is told what to do on standard input, and answers in JSON."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import uvloop

from tests.benchmarks.server import BenchmarkError

ROOT: Final = Path(__file__).parents[2]

TaskT = TypeVar("TaskT")
ReportT = TypeVar("ReportT")
LINE_BYTES_MAX: Final = 2**20
SAID_CHARACTERS_MAX: Final = 2_000


async def run_program(*command: str | Path, told: bytes = b"", stderr: int | None = None) -> bytes:
    """Run a program to its end and return its output; raise `BenchmarkError` where it fails.

    Where the benchmark is broken off meanwhile, so is the program.
    """
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=stderr, cwd=ROOT
    )
    try:
        out, errors = await process.communicate(told)
    except BaseException:
        process.kill()
        raise
    if process.returncode != 0:
        said = (errors or out).decode(errors="replace")[-SAID_CHARACTERS_MAX:]
        raise BenchmarkError(f"{' '.join(map(str, command))} failed:\n{said}")
    return out


async def run_worker(module: str, task: object, report: type[ReportT]) -> ReportT:
    """Run `python -m module`, hand it the task, and return its report; raise `BenchmarkError` where it fails."""
    out = await run_program(sys.executable, "-m", module, told=msgspec.json.encode(task))
    return msgspec.json.decode(out, type=report)


def serve_task(task: type[TaskT], work: Callable[[TaskT], Coroutine[Any, Any, object]]) -> None:
    """Be such a process: read the task, carry it out on uvloop, and write the report."""
    told = msgspec.json.decode(sys.stdin.buffer.read(), type=task)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        answer = runner.run(work(told))
    sys.stdout.buffer.write(msgspec.json.encode(answer))


async def read_lines(module: str, task: object, line: type[ReportT]) -> AsyncGenerator[ReportT, None]:
    """Run `python -m module`, hand it the task, and give each line of its report; raise where it fails."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
        limit=LINE_BYTES_MAX,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(msgspec.json.encode(task))
        process.stdin.write_eof()
        async for text in process.stdout:
            yield msgspec.json.decode(text, type=line)
    except BaseException:
        process.kill()
        raise
    finally:
        code = await process.wait()
    if code != 0:
        raise BenchmarkError(f"{module} failed: what it said is above")


def serve_lines(task: type[TaskT], work: Callable[[TaskT], AsyncIterator[object]]) -> None:
    """Be such a process that takes long: write a line of the report as soon as there is one."""
    told = msgspec.json.decode(sys.stdin.buffer.read(), type=task)

    async def write() -> None:
        async for line in work(told):
            sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
            sys.stdout.buffer.flush()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(write())
