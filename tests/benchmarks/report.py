"""The table and the JSON that a run ends with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.benchmarks.figures import Figures
from tests.benchmarks.goals import Goal


def show(console: Console, title: str, figures: Figures, goals: Sequence[Goal], remarks: dict[str, str]) -> None:
    """Print one table: every figure with its rounds, and under it how it stands to the goals that are set for it.

    Args:
        console: where.
        title: what is above the table.
        figures: what was measured.
        goals: what is wanted; those of figures that were not measured are left out.
        remarks: why something was not measured, by its name.
    """
    table = Table("figure", "median", "rounds", "beside", "ratio", "goal", "", title=title, title_justify="left")
    for name, rounds in figures.rounds.items():
        lines = [_beside(goal, figures) for goal in goals if goal.figure == name]
        first, *others = lines or [("", "", "", "")]
        worst = name in figures.worst
        told = "" if worst or len(rounds) == 1 else " ".join(map(_number, rounds))
        table.add_row(f"{name} (most)" if worst else name, _number(figures.value(name)), told, *first)
        for line in others:
            table.add_row("", "", "", *line)
    for name, remark in remarks.items():
        table.add_row(name, "", escape(remark))
    console.print(table)


def write(path: Path, facts: dict[str, Any], figures: Figures, goals: Sequence[Goal]) -> None:
    """Write the same as JSON, with what is known of the machine and the server."""
    document = {
        **facts,
        "figures": {name: {"value": figures.value(name), "rounds": rounds} for name, rounds in figures.rounds.items()},
        "goals": [verdict for goal in goals if (verdict := goal.judge(figures)) is not None],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")


def _beside(goal: Goal, figures: Figures) -> tuple[str, str, str, str]:
    verdict = goal.judge(figures)
    wanted = f"{goal.bound} {_number(goal.limit)}" if goal.base is None else f"{goal.bound} {goal.limit:.3g} ×"
    if verdict is None:
        return f"{goal.base}: not measured", "", wanted, ""
    met = "[green]met[/]" if verdict.met else "[red]not met[/]"
    if goal.base is None:
        return "", "", wanted, met
    return f"{goal.base} {_number(figures.value(goal.base))}", f"{verdict.measured:.2f}", wanted, met


def _number(value: float | None) -> str:
    assert value is not None
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
