"""The ends of the chains, kept elsewhere: against who can forge the books and all that stands beside them (A5).

An entry's hash covers all entries before it. So whoever keeps the hash of an account's last entry can tell later that
nothing up to it was changed, removed or reordered, whatever else was rewritten to match.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import msgspec
from msgspec import Meta

from ledger.audit.findings import Findings
from ledger.audit.reading import Connection, Row

CHUNK_HEADS: Final = 1_000
"""How many heads are compared at once."""

LINE_BYTES_MAX: Final = 1_000

# The entry that a head tells of, and the account's last one, which says how much is missing.
FOUND: Final = """
select h.account, h.sequence, h.hash as kept, e.hash, a.account_id,
    coalesce((select max(sequence) from ledger.entries l where l.account = h.account), 0) as last
from unnest($1::bigint[], $2::bigint[], $3::text[]) with ordinality h (account, sequence, hash, line)
left join ledger.entries e on e.account = h.account and e.sequence = h.sequence
left join ledger.accounts a on a.account = h.account
order by h.line
"""

Positive = Annotated[int, Meta(ge=1, le=2**63 - 1)]


class HeadsError(Exception):
    """A file of heads cannot be read or written; the message says which, and why."""


class Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last entry of an account: our number for the account, the entry's number, its hash in hexadecimal."""

    account: Positive
    sequence: Positive
    hash: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


_decode: Final = msgspec.json.Decoder(Head).decode


def heads_writer(file: BinaryIO) -> Callable[[Head], None]:
    """Return what writes heads into a file, one line of JSON each."""

    def write(head: Head) -> None:
        try:
            file.write(msgspec.json.encode(head) + b"\n")
        except OSError as error:
            raise HeadsError(f"the heads cannot be written: {error.strerror or error}") from error

    return write


@contextlib.contextmanager
def heads_of(path: Path) -> Iterator[Iterable[Head]]:
    """Give the heads of a file, which is read as they are taken; raise `HeadsError`, then too."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise HeadsError(f"{path} cannot be read: {error.strerror or error}") from error
    with file:
        yield _read(path, file)


def _read(path: Path, file: BinaryIO) -> Iterator[Head]:
    number = 0
    while line := file.readline(LINE_BYTES_MAX):
        number += 1
        try:
            yield _decode(line)
        except msgspec.MsgspecError as error:
            raise HeadsError(f"{path}, line {number}: {error}") from error
    if number == 0:
        raise HeadsError(f"{path} has no heads in it, so that nothing can be checked against it")


async def compare_heads(connection: Connection, findings: Findings, heads: Iterable[Head], only: int | None) -> None:
    """Note each head whose entry is not there any more, or is another; of one account only, where that is given."""
    left = iter(heads)
    while chunk := list(islice(left, CHUNK_HEADS)):
        wanted = [head for head in chunk if only in (None, head.account)]
        columns = zip(*((head.account, head.sequence, head.hash) for head in wanted), strict=True)
        if wanted:
            for row in await connection.fetch(FOUND, *map(list, columns)):
                _compare(findings, row)


def _compare(findings: Findings, row: Row) -> None:
    sequence, last, found = row["sequence"], row["last"], row["hash"]
    if found is not None and found.hex() == row["kept"]:
        return
    findings.begin(row["account"] if row["account_id"] is None else row["account_id"])
    if found is not None:
        what = f"entry {sequence} is another than the head that was kept"
        findings.note("A5", what, row["kept"], found.hex(), sequence=sequence)
    elif last < sequence:
        missing = f"entry {sequence} is" if last + 1 == sequence else f"entries {last + 1} to {sequence} are"
        what = f"{missing} missing: {sequence} was the head that was kept, the journal was cut off"
        findings.note("A5", what, row["kept"], None, sequence=last + 1)
    else:
        what = f"entry {sequence} is missing, which was the head that was kept"
        findings.note("A5", what, row["kept"], None, sequence=sequence)
