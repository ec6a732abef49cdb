"""Writes the dashboards to `grafana/dashboards`, as Grafana loads them: `python -m grafana.build`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from grafana.boards import account, business, operations

FOLDER: Final = Path(__file__).parent / "dashboards"


def dashboards() -> Iterator[tuple[Path, str]]:
    """Return each dashboard's file and what is to be in it."""
    for made in (operations.dashboard_of(), business.dashboard_of(), account.dashboard_of()):
        text = json.dumps(made, cls=JSONEncoder, indent=2, sort_keys=True, ensure_ascii=False)
        yield FOLDER / f"{made.uid}.json", f"{text}\n"


def main() -> None:
    """Write every dashboard."""
    for path, text in dashboards():
        path.write_text(text)


if __name__ == "__main__":
    main()
