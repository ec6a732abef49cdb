"""What `/metrics` says, taken apart."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from ledger import metrics
from tests.support.client import Client

Series = tuple[str, frozenset[tuple[str, str]]]


class Scrape:
    """The values of one scrape, by series."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self.values: dict[Series, float] = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        """Add up the series of a name that have these labels; KeyError where there is none."""
        if not self.has(name, **labels):
            raise KeyError(name, labels)
        return sum(self._found(name, labels))

    def has(self, name: str, **labels: str) -> bool:
        """Whether a metric has any series with these labels."""
        return bool(self._found(name, labels))

    def _found(self, name: str, labels: dict[str, str]) -> list[float]:
        return [value for (known, having), value in self.values.items() if known == name and having >= labels.items()]


async def scrape(client: Client) -> Scrape:
    """Ask a service for its metrics."""
    answer = await client.get("/metrics")
    assert answer.status == 200, answer
    return Scrape(text_string_to_metric_families(answer.body.decode()))


def scrape_here() -> Scrape:
    """Ask this process for its metrics: they add up over tests, so what counts is how they change."""
    return Scrape(metrics.REGISTRY.collect())
