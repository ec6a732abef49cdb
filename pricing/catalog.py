"""The price catalog: versions with an effective date, read from a TOML file and checked (contract P1, P9)."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec

OPERATION_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
DEFAULT_FILE = Path(__file__).with_name("catalog.toml")

Slot = Literal["request", "call"]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
Credits = Annotated[int, msgspec.Meta(ge=1, le=10**9)]


class InvalidCatalog(ValueError):
    """The catalog file cannot be used; the message names the version and the fault."""


class OperationNotPriced(LookupError):
    """The catalog version in force has no price for the operation: our defect (contract P1)."""

    def __init__(self, operation: str) -> None:
        super().__init__(f"operation {operation!r} has no price")
        self.operation = operation


class UnknownVersion(LookupError):
    """This catalog lacks a version that a job was reserved under: it is older than the one that priced the job."""

    def __init__(self, version: str) -> None:
        super().__init__(f"the catalog has no version {version}")


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The price of one operation: `credits` for each billed `unit` of each of its `legs`."""

    operation: str = ""
    unit: Name
    measured_in: Name
    credits: Credits
    per: Annotated[int, msgspec.Meta(ge=1, le=10**6)] = 1
    legs: Annotated[int, msgspec.Meta(ge=1, le=10)] = 1
    minimum: Annotated[int, msgspec.Meta(ge=1, le=10**6)] = 1
    flat: bool = False
    slot: Slot = "request"
    transfer_to: str | None = None

    @property
    def fractional(self) -> bool:
        """Whether a measured quantity may have a fraction: only seconds may."""
        return self.measured_in == "second"


class CatalogVersion(msgspec.Struct, frozen=True, kw_only=True):
    """All prices in force from `effective_from` until the next version's."""

    version: str
    effective_from: datetime
    prices: Mapping[str, Price]

    def price(self, operation: str) -> Price:
        """Return the operation's price, or raise `OperationNotPriced` (P1)."""
        found = self.prices.get(operation)
        if found is None:
            raise OperationNotPriced(operation)
        return found

    @property
    def digest(self) -> str:
        """A fingerprint of the date and every price: equal digests mean equal versions (P9).

        It is kept in databases: what goes into it is written out, and a new field goes in only where it is used.
        """
        prices = [
            (p.operation, p.unit, p.measured_in, p.credits, p.per, p.legs, p.minimum, p.flat, p.slot, p.transfer_to)
            for p in (self.prices[name] for name in sorted(self.prices))
        ]
        parts = (self.version, self.effective_from, prices)
        return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


class Catalog:
    """Every version of the prices, oldest first."""

    def __init__(self, versions: list[CatalogVersion]) -> None:
        self.versions = tuple(sorted(versions, key=lambda v: v.effective_from))
        self._by_name = {v.version: v for v in self.versions}

    def at(self, instant: datetime) -> CatalogVersion | None:
        """Return the version in force at an instant: the last that began at or before it (T2)."""
        for version in reversed(self.versions):
            if version.effective_from <= instant:
                return version
        return None

    def version(self, name: str) -> CatalogVersion:
        """Return a version by its name, or raise `UnknownVersion`; a job asks for the one it has (P9)."""
        found = self._by_name.get(name)
        if found is None:
            raise UnknownVersion(name)
        return found

    def __contains__(self, name: str) -> bool:
        return name in self._by_name


class _Version(msgspec.Struct, forbid_unknown_fields=True):
    version: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    effective_from: Annotated[datetime, msgspec.Meta(tz=True)]
    operations: dict[str, Price]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    versions: Annotated[list[_Version], msgspec.Meta(min_length=1)]


def load(path: Path = DEFAULT_FILE) -> Catalog:
    """Read and check a catalog file. Raise `InvalidCatalog` saying what is wrong with it."""
    try:
        return parse(path.read_bytes())
    except OSError as error:
        raise InvalidCatalog(f"the price catalog cannot be read: {error}") from error
    except InvalidCatalog as error:
        raise InvalidCatalog(f"{path}: {error}") from error


def parse(content: bytes) -> Catalog:
    """Turn the text of a catalog file into a `Catalog`, or raise `InvalidCatalog`."""
    try:
        document = msgspec.convert(tomllib.loads(content.decode()), _File)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise InvalidCatalog(str(error)) from error
    versions = [_version(raw) for raw in document.versions]
    _refuse_repeated([v.version for v in versions], "version")
    _refuse_repeated([v.effective_from.isoformat() for v in versions], "effective_from")
    return Catalog(versions)


def _version(raw: _Version) -> CatalogVersion:
    prices = {name: msgspec.structs.replace(price, operation=name) for name, price in raw.operations.items()}
    for name, price in prices.items():
        if not OPERATION_NAME.fullmatch(name):
            raise InvalidCatalog(f"version {raw.version}: {name!r} is not an operation name")
        if raw.operations[name].operation:
            raise InvalidCatalog(f"version {raw.version}: {name} is named by its table, not by a key in it")
        if price.transfer_to is not None:
            _check_transfer(raw.version, price, prices.get(price.transfer_to))
    return CatalogVersion(version=raw.version, effective_from=_in_utc(raw), prices=prices)


def _in_utc(raw: _Version) -> datetime:
    try:
        return raw.effective_from.astimezone(UTC)
    except OverflowError:
        raise InvalidCatalog(f"version {raw.version}: effective_from is out of range") from None


def _check_transfer(version: str, call: Price, bridged: Price | None) -> None:
    """Refuse a transfer that the hold of P10 would not cover: its two parts are counted in the same minutes."""
    what = f"version {version}: {call.operation}"
    if call.slot != "call":
        raise InvalidCatalog(f"{what} is no call and cannot be transferred")
    if bridged is None:
        raise InvalidCatalog(f"{what} is transferred to {call.transfer_to}, which has no price")
    if call.per != bridged.per or call.minimum != 1 or bridged.minimum != 1:
        raise InvalidCatalog(f"{what} and {bridged.operation} need the same `per` and a minimum of 1")


def _refuse_repeated(names: list[str], what: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise InvalidCatalog(f"{what} {name} stands twice")
