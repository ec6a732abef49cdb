from __future__ import annotations

import pytest
from click.testing import CliRunner

from ledger.cli import main
from ledger.tokens import TokenTable


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABASE_URL", "OWNER_DATABASE_URL", "ADMIN_TOKEN", "GATEWAY_TOKEN", "ROLE"):
        monkeypatch.delenv(f"LEDGER_{name}", raising=False)


def test_a_new_token_and_its_hash_belong_together() -> None:
    answer = CliRunner().invoke(main, ["tokens", "new", "--role", "reader"])
    lines = dict(line.split() for line in answer.output.splitlines())
    assert TokenTable.of_hashes(lines["hash"]).role_of(lines["token"]) == "reader"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["migrate"], "give --database-url or LEDGER_OWNER_DATABASE_URL"),
        (["migrate", "--database-url", "mysql://x"], "LEDGER_DATABASE_URL: expected"),
        (["sweep", "audit"], "give --database-url"),
        (["sweep", "dream", "--database-url", "postgresql://u@/d"], "there is no sweep dream"),
        (["replay", __file__], "LEDGER_ADMIN_TOKEN is not set"),
        (["tokens", "new", "--role", "boss"], "'boss' is not one of"),
        (["export", "usage"], "give --period"),
        (["export", "usage", "--period", "2026-13"], "'2026-13' is not a month written YYYY-MM"),
        (["export", "usage", "--period", "2026-11"], "give --database-url"),
        (["export", "usage", "--period", "2026-11", "--account", "a", "--all"], "give either --account or --all"),
        (["export", "usage", "--period", "2026-11", "--format", "xlsx"], "'xlsx' is not one of"),
        (["export", "jobs", "--period", "2026-11"], "'jobs' is not one of"),
    ],
)
def test_a_wrong_use_says_what_is_missing(arguments: list[str], message: str) -> None:
    answer = CliRunner().invoke(main, arguments)
    assert answer.exit_code == 2
    assert message in answer.output


def test_a_database_that_is_away_is_an_error_and_no_traceback() -> None:
    answer = CliRunner().invoke(main, ["migrate", "--database-url", "postgresql://u@/d?host=/nonexistent"])
    assert answer.exit_code == 1
    assert "Error: the database could not be migrated" in answer.output
