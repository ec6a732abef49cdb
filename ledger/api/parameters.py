"""Query parameters of the reads: each is checked, and what is wrong is named with what is allowed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, datetime
from typing import Any, Final, TypeVar

from litestar import Request

from ledger.api import bodies
from ledger.api.errors import invalid
from ledger.core.commands import ENVIRONMENTS, Environment, JobStatus
from ledger.core.periods import period_end
from ledger.queries import PageRequest
from ledger.queries.jobs import JobFilter
from ledger.queries.paging import LIMIT_DEFAULT, LIMIT_MAX

STATUSES: Final[tuple[JobStatus, ...]] = ("reserved", "settled", "released", "expired")
LIST: Final = ("limit", "cursor")
"""The parameters of every list."""
JOB_FILTER: Final = ("environment", "status", "operation", "from", "to")

_OPERATION: Final = re.compile(bodies.OPERATION)
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_LIMIT: Final = re.compile(r"[0-9]{1,9}")

T = TypeVar("T", date, datetime)
Name = TypeVar("Name", bound=str)


class Parameters:
    """The query parameters of one request; every reader raises `validation_error` for what it cannot read."""

    def __init__(self, request: Request[Any, Any, Any], *allowed: str) -> None:
        given = request.query_params
        bodies.known_parameters(given.keys(), *allowed)
        for name in given:
            if len(given.getall(name)) > 1:
                raise invalid(f"{name}: given more than once")
        self._given: dict[str, str] = dict(given)

    def has(self, name: str) -> bool:
        """Return whether a parameter is given."""
        return name in self._given

    def choice(self, name: str, allowed: Sequence[Name]) -> Name | None:
        """Return one of a few words, or None where it is not given."""
        value = self._given.get(name)
        return None if value is None else _one_of(name, value, allowed)

    def choices(self, name: str, allowed: Sequence[Name], default: Sequence[Name]) -> Sequence[Name]:
        """Return some of a few words, separated by commas."""
        value = self._given.get(name)
        return default if value is None else [_one_of(name, part, allowed) for part in value.split(",")]

    def switch(self, name: str) -> bool:
        """Return whether a parameter is `true`; it is not where it is left out."""
        return self.choice(name, ("true", "false")) == "true"

    def month(self, name: str) -> str | None:
        """Return a calendar month."""
        value = self._given.get(name)
        return None if value is None else month(name, value)

    def instant(self, name: str) -> datetime | None:
        """Return an instant in UTC."""
        value = self._given.get(name)
        return None if value is None else bodies.instant_text(name, value)

    def instants(self) -> tuple[datetime | None, datetime | None]:
        """Return the bounds `from` and `to`, either of which may be left out."""
        start, end = self.instant("from"), self.instant("to")
        if start is not None and end is not None:
            _in_order(start, end)
        return start, end

    def days(self) -> tuple[date, date] | None:
        """Return the days `from` and `to`, which come together, or None without them."""
        missing = [name for name in ("from", "to") if not self.has(name)]
        if len(missing) == 2:
            return None
        if missing:
            raise invalid(f"{missing[0]}: from and to come together")
        return _in_order(self._date("from"), self._date("to"))

    def _date(self, name: str) -> date:
        value = self._given[name]
        try:
            if _DATE.fullmatch(value):
                return date.fromisoformat(value)
        except ValueError:
            pass
        raise invalid(f"{name}: a date written YYYY-MM-DD is expected")

    def environment(self) -> Environment | None:
        """Return the environment that is asked for."""
        return self.choice("environment", ENVIRONMENTS)

    def job_filter(self) -> JobFilter:
        """Return what narrows lists of jobs and of usage records."""
        operation = self._given.get("operation")
        if operation is not None and not _OPERATION.match(operation):
            raise invalid("operation: a name of a-z, 0-9 and _ is expected, the first a letter, at most 64 characters")
        start, end = self.instants()
        return JobFilter(
            environment=self.environment(),
            status=self.choice("status", STATUSES),
            operation=operation,
            start=start,
            end=end,
        )

    def account_id(self) -> str | None:
        """Return the account that a list is narrowed to."""
        value = self._given.get("account_id")
        return None if value is None else bodies.identifier("account_id", value)

    def page(self, cursor: str = "cursor") -> PageRequest:
        """Return which page of a list is asked for; `cursor` is the name of what it stands behind."""
        text = self._given.get("limit", str(LIMIT_DEFAULT))
        if not _LIMIT.fullmatch(text) or not 1 <= int(text) <= LIMIT_MAX:
            raise invalid(f"limit: a whole number from 1 to {LIMIT_MAX} is expected")
        return PageRequest(int(text), self._given.get(cursor))


def month(name: str, value: str) -> str:
    """Return a calendar month whose end there is a date for."""
    try:
        period_end(bodies.month(name, value))
    except ValueError:
        raise invalid(f"{name}: the month is out of range") from None
    return value


def _one_of(name: str, value: str, allowed: Sequence[Name]) -> Name:
    for word in allowed:
        if value == word:
            return word
    raise invalid(f"{name}: allowed: {', '.join(allowed)}")


def _in_order(start: T, end: T) -> tuple[T, T]:
    if end < start:
        raise invalid("from: it lies after to; the range is from <= instant < to")
    return start, end
