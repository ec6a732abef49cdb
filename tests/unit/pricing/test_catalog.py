"""The price catalog: what a file must say, which version is in force, what makes two versions the same (P1, P9, T2)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pricing.catalog import InvalidCatalog, OperationNotPriced, Price, UnknownVersion, load, parse

MICROSECOND = timedelta(microseconds=1)


def version(name: str = "v1", begins: str = "2026-01-01T00:00:00Z", operations: str = "") -> str:
    """A version of a catalog file, with one plain operation unless told otherwise."""
    return (
        f'[[versions]]\nversion = "{name}"\neffective_from = {begins}\n'
        f"[versions.operations]\n{operations or operation('turn')}\n"
    )


def operation(name: str, **fields: str) -> str:
    """One line of a version: an operation with its fields as TOML writes them."""
    written = {"unit": '"request"', "measured_in": '"request"', "credits": "11"} | fields
    return f"{name} = {{{', '.join(f'{key} = {value}' for key, value in written.items() if value)}}}"


# -- the catalog that comes with the package -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "unit", "measured_in", "per", "legs", "minimum", "slot", "credits"),
    [
        ("agent_turn", "request", "request", 1, 1, 1, "request", 11),
        ("image_analysis", "image", "image", 1, 1, 1, "request", 55),
        ("document_analysis", "document", "document", 1, 1, 1, "request", 40),
        ("video_analysis", "video", "video", 1, 1, 1, "request", 270),
        ("audio_transcription", "second", "second", 1, 1, 10, "request", 1),
        ("tts_synthesis", "character", "character", 1, 1, 1, "request", 1),
        ("sentiment_analysis", "request", "request", 1, 1, 1, "request", 1),
        ("voice_call_minute", "minute", "second", 60, 1, 1, "call", 620),
        ("voice_transfer_minute", "minute", "second", 60, 2, 1, "call", 230),
    ],
)
def test_the_package_prices_every_operation_as_published(
    name: str, unit: str, measured_in: str, per: int, legs: int, minimum: int, slot: str, credits: int
) -> None:
    """P: the table of prices."""
    price = load().version("2026-09-11").price(name)
    assert (price.operation, price.unit, price.measured_in) == (name, unit, measured_in)
    assert (price.per, price.legs, price.minimum, price.slot) == (per, legs, minimum, slot)
    assert price.credits == credits
    assert price.flat is (name == "video_analysis")
    assert price.fractional is (measured_in == "second")
    assert price.transfer_to == ("voice_transfer_minute" if name == "voice_call_minute" else None)


def test_the_package_prices_nothing_else() -> None:
    """P1: the catalog is the only source of a price."""
    prices = load().version("2026-09-11")
    assert len(prices.prices) == 9
    with pytest.raises(OperationNotPriced, match="'teleport' has no price") as missing:
        prices.price("teleport")
    assert missing.value.operation == "teleport"


# -- which version is in force -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("instant", "expected"),
    [
        (datetime(2026, 1, 1, tzinfo=UTC) - MICROSECOND, None),
        (datetime(2026, 1, 1, tzinfo=UTC), "old"),
        (datetime(2026, 7, 1, tzinfo=UTC) - MICROSECOND, "old"),
        (datetime(2026, 7, 1, tzinfo=UTC), "new"),
        (datetime(2999, 1, 1, tzinfo=UTC), "new"),
    ],
    ids=["before all", "first instant", "last instant of the old", "first instant of the new", "for ever"],
)
def test_a_version_is_in_force_from_its_first_instant_until_the_next(instant: datetime, expected: str | None) -> None:
    """P9, T2: whatever the order of the versions in the file."""
    catalog = parse((version("new", "2026-07-01T00:00:00Z") + version("old", "2026-01-01T00:00:00Z")).encode())
    found = catalog.at(instant)
    assert (found and found.version) == expected


def test_past_versions_stay_readable_by_name() -> None:
    """P9."""
    catalog = parse((version("old") + version("new", "2026-07-01T00:00:00Z")).encode())
    assert [v.version for v in catalog.versions] == ["old", "new"]
    assert catalog.version("old").effective_from == datetime(2026, 1, 1, tzinfo=UTC)
    assert "old" in catalog
    assert "older" not in catalog
    with pytest.raises(UnknownVersion, match="no version older"):
        catalog.version("older")


@pytest.fixture
def machine_in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The machine's own clock is set to another time zone."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("machine_in_tokyo")
def test_an_effective_date_in_another_offset_is_the_same_instant_in_utc() -> None:
    """T2: wherever the machine stands."""
    (found,) = parse(version(begins="2026-01-01T01:00:00+01:00").encode()).versions
    assert found.effective_from == datetime(2026, 1, 1, tzinfo=UTC)
    assert found.effective_from.utcoffset() == timedelta(0)


# -- what makes two versions the same ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (version(operations=operation("turn") + "\n" + operation("image")), True),
        (version(operations=operation("image") + "\n" + operation("turn")), True),
        (version(operations=operation("turn", per="1") + "\n" + operation("image", flat="false")), True),
        (
            version(begins="2026-01-01T01:00:00+01:00", operations=operation("turn") + "\n" + operation("image")),
            True,
        ),
        (version(operations=operation("turn", credits="12") + "\n" + operation("image")), False),
        (version(operations=operation("turn", minimum="2") + "\n" + operation("image")), False),
        (version(operations=operation("turn")), False),
        (
            version(begins="2026-01-02T00:00:00Z", operations=operation("turn") + "\n" + operation("image")),
            False,
        ),
    ],
    ids=[
        "the same",
        "other order",
        "defaults written out",
        "other offset",
        "other price",
        "other minimum",
        "price dropped",
        "other date",
    ],
)
def test_a_digest_tells_whether_a_version_was_altered(other: str, same: bool) -> None:
    """P9: what has been used never changes."""
    base = version(operations=operation("turn") + "\n" + operation("image"))
    (one,), (two,) = parse(base.encode()).versions, parse(other.encode()).versions
    assert (one.digest == two.digest) is same


# -- files that are refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"versions = [", "Invalid|Expected|Unclosed"),
        (b"\xff\xfe", "utf-8"),
        (b"", "missing required field `versions`"),
        (b"versions = []", "length >= 1"),
        (b"versions = 3", "Expected `array`"),
        (version().encode() + b"extra = 1\n", "Expected `object`"),
        (b"extra = 1\n" + version().encode(), "unknown field `extra`"),
        (version().replace("[versions.op", "colour = 1\n[versions.op").encode(), "unknown field `colour`"),
        (version(name="").encode(), "matching regex"),
        (version(name="-v").encode(), "matching regex"),
        (version(name="v 1").encode(), "matching regex"),
        (version(name="v" * 65).encode(), "matching regex"),
        (version(begins="2026-01-01T00:00:00").encode(), "timezone"),
        (version(begins="2026-01-01").encode(), "datetime"),
        (version(begins="12").encode(), "datetime"),
        (version(operations=operation("Turn")).encode(), "'Turn' is not an operation name"),
        (version(operations=operation("1turn")).encode(), "'1turn' is not an operation name"),
        (version(operations=operation("t" * 65)).encode(), "is not an operation name"),
        (version(operations=operation("turn", unit="")).encode(), "missing required field `unit`"),
        (version(operations=operation("turn", unit='""')).encode(), "length >= 1"),
        (version(operations=operation("turn", measured_in="")).encode(), "missing required field"),
        (version(operations=operation("turn", credits="")).encode(), "missing required field `credits`"),
        (version(operations=operation("turn", credits="0")).encode(), ">= 1"),
        (version(operations=operation("turn", credits="-1")).encode(), ">= 1"),
        (version(operations=operation("turn", credits="1.5")).encode(), "Expected `int`"),
        (version(operations=operation("turn", credits="1000000001")).encode(), "<= 1000000000"),
        (version(operations=operation("turn", per="0")).encode(), ">= 1"),
        (version(operations=operation("turn", legs="0")).encode(), ">= 1"),
        (version(operations=operation("turn", legs="11")).encode(), "<= 10"),
        (version(operations=operation("turn", minimum="0")).encode(), ">= 1"),
        (version(operations=operation("turn", per="1000001")).encode(), "<= 1000000"),
        (version(operations=operation("turn", minimum="1000001")).encode(), "<= 1000000"),
        (version(operations=operation("turn", unit=f'"{"u" * 65}"')).encode(), "length <= 64"),
        (version(operations=operation("turn", flat="1")).encode(), "Expected `bool`"),
        (version(operations=operation("turn", slot='"train"')).encode(), "Invalid enum value 'train'"),
        (version(operations=operation("turn", colour='"red"')).encode(), "unknown field `colour`"),
        (
            version(operations=operation("call", slot='"call"', transfer_to='"bridge"')).encode(),
            "version v1: call is transferred to bridge, which has no price",
        ),
        (
            version(
                operations=operation("call", slot='"call"', per="60", transfer_to='"bridge"')
                + "\n"
                + operation("bridge", slot='"call"')
            ).encode(),
            "version v1: call and bridge need the same `per` and a minimum of 1",
        ),
        (
            version(
                operations=operation("call", slot='"call"', minimum="2", transfer_to='"bridge"')
                + "\n"
                + operation("bridge", slot='"call"')
            ).encode(),
            "version v1: call and bridge need the same `per` and a minimum of 1",
        ),
        (
            version(
                operations=operation("call", slot='"call"', transfer_to='"bridge"')
                + "\n"
                + operation("bridge", slot='"call"', minimum="2")
            ).encode(),
            "version v1: call and bridge need the same `per` and a minimum of 1",
        ),
        (
            version(operations=operation("turn", operation='"turn"')).encode(),
            "version v1: turn is named by its table, not by a key in it",
        ),
        (version(begins="0001-01-01T00:00:00+14:00").encode(), "version v1: effective_from is out of range"),
        (
            version(operations=operation("turn", transfer_to='"call"')).encode(),
            "version v1: turn is no call and cannot be transferred",
        ),
        ((version("v1") + version("v1", "2026-07-01T00:00:00Z")).encode(), "version v1 stands twice"),
        (
            (version("v1") + version("v2", "2026-01-01T01:00:00+01:00")).encode(),
            r"effective_from 2026-01-01T00:00:00\+00:00 stands twice",
        ),
    ],
)
def test_a_faulty_file_is_refused_and_the_fault_is_named(content: bytes, complaint: str) -> None:
    """P1, P9."""
    with pytest.raises(InvalidCatalog, match=complaint):
        parse(content)


def test_a_refusal_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_bytes(b"versions = 3")
    with pytest.raises(InvalidCatalog, match=r"prices\.toml: Expected `array`"):
        load(path)
    with pytest.raises(InvalidCatalog, match="cannot be read"):
        load(tmp_path / "nowhere.toml")


def test_only_calls_can_be_transferred() -> None:
    """P10."""
    catalog = parse(
        version(
            operations=operation("call", slot='"call"', transfer_to='"bridge"')
            + "\n"
            + operation("bridge", slot='"call"')
        ).encode()
    )
    assert catalog.version("v1").prices == {
        "call": Price(
            operation="call",
            unit="request",
            measured_in="request",
            credits=11,
            slot="call",
            transfer_to="bridge",
        ),
        "bridge": Price(operation="bridge", unit="request", measured_in="request", credits=11, slot="call"),
    }
