"""The tables that a replay ends with."""

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ledger.replay.tally import OperationTotals, Tally, percentile

__all__ = ["report"]

COLUMNS = ("jobs", "already_done", "reserved", "charged", "returned", "over_hold", "left_open")
PERCENTILES = (50.0, 95.0, 99.0, 100.0)


def report(console: Console, tally: Tally) -> None:
    """Print what was seen, the problems and the verdict."""
    console.print(Group(_operations(tally), _figures(tally), *_problems(tally), _verdict(tally)))


def _operations(tally: Tally) -> Table:
    """Credits by operation; a job of several lines counts with its first."""
    table = Table(title="Jobs and credits, by the job's operation", title_justify="left", show_footer=True)
    total = {column: sum(getattr(totals, column) for totals in tally.operations.values()) for column in COLUMNS}
    table.add_column("operation", footer="total", overflow="fold")
    for column in COLUMNS:
        table.add_column(column.replace("_", " "), footer=f"{total[column]:,}", justify="right")
    for operation, totals in sorted(tally.operations.items()):
        table.add_row(operation, *_cells(totals))
    return table


def _cells(totals: OperationTotals) -> list[str]:
    return [f"{getattr(totals, column):,}" for column in COLUMNS]


def _figures(tally: Tally) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, figure in _facts(tally).items():
        table.add_row(name, escape(figure))
    return table


def _facts(tally: Tally) -> dict[str, str]:
    sent = sum(tally.commands.values())
    facts = {"commands": f"{sent:,} ({_counts(tally.commands)}), {tally.retries:,} sent again after an outage"}
    if tally.earlier_credits:
        facts["charged by earlier runs"] = f"{tally.earlier_credits:,} credits"
    if tally.seconds > 0:
        facts["throughput"] = f"{sent / tally.seconds:,.0f} commands/s over {tally.seconds:,.1f} s"
    if tally.late_seconds_max:
        facts["late, at most"] = f"{tally.late_seconds_max:,.3f} s"
    facts["latency"] = _latency(tally)
    facts["refusals"] = _counts(tally.refusals)
    facts["balances"] = f"{tally.balances_checked:,} accounts compared with their charges"
    facts["audit"] = tally.audit.summary if tally.audit else "not done"
    return facts


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())) or "none"


def _latency(tally: Tally) -> str:
    ordered = sorted(tally.latencies)
    if not ordered:
        return "none"
    names = ("max" if percent == 100 else f"p{percent:.0f}" for percent in PERCENTILES)
    values = (percentile(ordered, percent) for percent in PERCENTILES)
    return ", ".join(f"{name} {value * 1000:,.1f} ms" for name, value in zip(names, values, strict=True))


def _problems(tally: Tally) -> list[RenderableType]:
    lines = [Text(f"{count:,} {kind.value}", style="red") for kind, count in tally.problems.items()]
    lines += [Text(f"  {sample}") for sample in tally.samples]
    if tally.stopped is not None:
        lines.append(Text(f"stopped: {tally.stopped}", style="red"))
    return list(lines)


def _verdict(tally: Tally) -> Text:
    if tally.ok:
        return Text("Nothing refused by mistake, nothing lost, every charge right, audit clean.", style="green")
    return Text("The replay did not go as it should.", style="bold red")
