"""A real trace against the real service: nothing refused by mistake, nothing lost, and again it changes nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ledger.tokens import Role, variable_of
from tests.support.client import connect
from tests.support.service import Service

TRACE = Path(__file__).parents[1] / "data" / "azure_llm_2023_conversation_head.csv"


def replay(service: Service, trace: Path) -> subprocess.CompletedProcess[str]:
    environment = {variable_of(role): token for role, token in service.tokens.items() if role != Role.READER}
    command = [str(Path(sys.executable).with_name("gateway-ledger")), "replay", str(trace), "--url", service.url]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)


async def test_a_trace_replays_whole_and_only_once(server: Service) -> None:
    first = replay(server, TRACE)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "audit clean" in first.stdout
    async with connect(server) as client:
        before = [await client.get(f"/v1/accounts/acct-{n}/entries?limit=500") for n in (0, 1)]
        second = replay(server, TRACE)
        assert second.returncode == 0, second.stdout + second.stderr
        after = [await client.get(f"/v1/accounts/acct-{n}/entries?limit=500") for n in (0, 1)]
    assert [answer.body for answer in before] == [answer.body for answer in after]


def test_a_trace_that_is_none(server: Service, tmp_path: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\nnow,1,2\n")
    result = replay(server, bad)
    assert result.returncode == 2
    assert "bad.csv" in result.stderr
    assert "3" in result.stderr
