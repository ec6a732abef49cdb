"""The books: the names of their accounts, the text that is hashed, the chain (A1, A5, A7)."""

from __future__ import annotations

import hashlib

import pytest

from ledger.core import books
from ledger.core.books import Entry, Posting
from tests.support.core import ACME, World, characters, instant
from tests.support.sums import check_chain

AT = instant("2026-11-15T12:00:00")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (books.grant_account(7), "grant:7"),
        (books.hold_account(9), "hold:9"),
        (books.overage_account("2026-11"), "overage:2026-11"),
        (books.issued_account("plan"), "issued:plan"),
        (books.consumed_account("agent_turn"), "consumed:agent_turn"),
        (books.OVERDRAFT, "overdraft"),
        (books.EXPIRED, "expired"),
    ],
)
def test_the_accounts_of_the_books(name: str, expected: str) -> None:
    """A7."""
    assert name == expected


@pytest.mark.parametrize(
    ("what", "job", "at", "postings", "expected"),
    [
        (
            "a reservation",
            3,
            "2026-11-15T12:00:00",
            (Posting("grant:1", "hold:3", 11),),
            '[1,3,"reserve",3,"2026-11-15T12:00:00Z",[["grant:1","hold:3",11,null,null]]]',
        ),
        (
            "no job, microseconds, two movements",
            None,
            "2026-11-15T12:00:00.000120",
            (Posting("hold:3", "consumed:agent_turn", 11, "agent_turn", 1), Posting("hold:3", "grant:1", 4)),
            (
                '[1,3,"reserve",null,"2026-11-15T12:00:00.000120Z",'
                '[["hold:3","consumed:agent_turn",11,"agent_turn",1],["hold:3","grant:1",4,null,null]]]'
            ),
        ),
    ],
)
def test_the_text_that_is_hashed_is_compact_json_of_all_that_stays(
    what: str, job: int | None, at: str, postings: tuple[Posting, ...], expected: str
) -> None:
    """A5, A7: the text is published, and others recompute it; it can never change."""
    text = books.canonical_text(1, 3, "reserve", job, instant(at), postings)
    assert text.decode() == expected, what
    assert books.chain("0" * 64, text) == hashlib.sha256(b"0" * 64 + text).hexdigest()


def test_an_entry_is_chained_to_the_one_before() -> None:
    """A5."""
    postings = (Posting("issued:purchase", "grant:1", 100),)
    first = books.new_entry(1, 1, "grant", None, AT, postings, books.GENESIS_HASH)
    second = books.new_entry(1, 2, "grant", None, AT, postings, first.hash)
    assert (first.previous_hash, second.previous_hash) == ("0" * 64, first.hash)
    check_chain([first, second], account=1)


def test_a_hash_once_written_stays_what_it_is() -> None:
    """A5: the books of today are checked by the code of tomorrow."""
    entry = books.new_entry(1, 1, "grant", None, AT, (Posting("issued:purchase", "grant:1", 100),), books.GENESIS_HASH)
    assert entry.hash == "e7ec0dd9e5e9723534c66f06d254e6e1299d73e96df3b85596fb6b13f3b4420f"


def edited(entry: Entry, **changes: object) -> Entry:
    """The entry with something in it changed, and its hash left as it was."""
    fields = {name: getattr(entry, name) for name in Entry.__struct_fields__} | changes
    return Entry(**fields)


@pytest.mark.parametrize(
    "how",
    [
        "other credits",
        "other job",
        "other kind",
        "other instant",
        "left out",
        "swapped",
        "the last left out, renumbered",
    ],
)
def test_tampering_is_found(how: str) -> None:
    """A5: a changed, removed or reordered entry is found."""
    world = World()
    world.open_account(100)
    world.charges("j1", characters(10))
    world.charges("j2", characters(10))
    entries = list(world.journal[ACME])
    check_chain(entries, account=1)
    second = entries[1]
    if how == "other credits":
        entries[1] = edited(second, postings=(Posting("grant:1", "hold:2", 9),))
    elif how == "other job":
        entries[1] = edited(second, job=1)
    elif how == "other kind":
        entries[1] = edited(second, kind="release")
    elif how == "other instant":
        entries[1] = edited(second, at=instant("2026-11-15T11:00:00"))
    elif how == "left out":
        del entries[1]
    elif how == "swapped":
        entries[1], entries[2] = entries[2], entries[1]
    else:
        entries[1:3] = [edited(entries[2], sequence=2)]
    with pytest.raises(AssertionError):
        check_chain(entries, account=1)
