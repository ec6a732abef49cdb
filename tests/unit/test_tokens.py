from __future__ import annotations

import hashlib
import re
import stat
from pathlib import Path

import pytest

from ledger.tokens import Role, TokenTable, development_tokens, hash_of, new_token, variable_of


@pytest.mark.parametrize("role", list(Role))
def test_a_new_token_names_its_role_and_is_never_the_same_twice(role: Role) -> None:
    first, second = new_token(role), new_token(role)
    assert first != second
    assert re.fullmatch(rf"glt_{role}_[A-Za-z0-9_-]{{43}}", first)


def test_a_token_is_known_by_its_hash_in_text_or_bytes() -> None:
    token = new_token(Role.READER)
    table = TokenTable.of_hashes(hash_of(token, Role.READER))
    assert table.role_of(token) is Role.READER
    assert table.role_of(token.encode()) is Role.READER
    assert hash_of(token, Role.READER) == f"reader:{hashlib.sha256(token.encode()).hexdigest()}"


@pytest.mark.parametrize("token", ["", "glt_admin_x", "\ud800", "é" * 1000, "a\x00b"])
def test_any_other_text_has_no_role(token: str) -> None:
    assert TokenTable.of_tokens({new_token(Role.ADMIN): Role.ADMIN}).role_of(token) is None


def test_two_tokens_of_a_role_are_accepted_while_one_replaces_the_other() -> None:
    old, new = new_token(Role.GATEWAY), new_token(Role.GATEWAY)
    table = TokenTable.of_hashes(f" {hash_of(old, Role.GATEWAY)} , {hash_of(new, Role.GATEWAY).upper().lower()},")
    assert [table.role_of(token) for token in (old, new)] == [Role.GATEWAY, Role.GATEWAY]


@pytest.mark.parametrize("text", ["gateway", "gateway:", "boss:" + "0" * 64, "admin:" + "0" * 63, "admin:" + "g" * 64])
def test_a_malformed_hash_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(ValueError, match="role:sha256hex") as refusal:
        TokenTable.of_hashes(text)
    assert "000" not in str(refusal.value)


def test_a_table_shows_no_hash() -> None:
    assert repr(TokenTable.of_tokens({"secret": Role.ADMIN})) == "TokenTable(1 tokens)"


def test_development_tokens_are_made_once_and_are_for_their_owner_only(tmp_path: Path) -> None:
    path, first = development_tokens(tmp_path)
    text = path.read_text()
    _, second = development_tokens(tmp_path)
    assert path.read_text() == text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    tokens = dict(line.split("=", 1) for line in text.splitlines())
    for role in Role:
        assert first.role_of(tokens[variable_of(role)]) is second.role_of(tokens[variable_of(role)]) is role
    assert [file.name for file in tmp_path.iterdir()] == ["tokens.env"]


def test_a_tokens_file_that_lacks_a_token_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokens.env").write_text("LEDGER_GATEWAY_TOKEN=glt_gateway_x\n")
    with pytest.raises(ValueError, match="lacks LEDGER_READER_TOKEN, LEDGER_ADMIN_TOKEN"):
        development_tokens(tmp_path)
