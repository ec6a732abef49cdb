"""The list of metrics for people says what is defined."""

from __future__ import annotations

from pathlib import Path

import ledger
from ledger import metrics

DOCUMENT = Path(ledger.__file__).with_name("WATCHING.md")


def table() -> str:
    """Return the table of all metrics, in the order in which they are defined."""
    read = {gauge.name for gauge in metrics.READ}
    rows = [
        f"| `{each.name}` | {each.type}{', *database*' if each.name in read else ''} | "
        f"{', '.join(each.labels) or '–'} | {each.text} |"
        for each in metrics.DEFINITIONS
    ]
    return "\n".join(["| name | type | labels | what it says |", "|---|---|---|---|", *rows])


def test_the_document_lists_every_metric() -> None:
    listed = DOCUMENT.read_text().partition("this is what metrics.py says -->\n\n")[2].partition("\n\n<!--")[0]
    assert listed == table(), f"write this into {DOCUMENT.name}:\n{table()}"
