from __future__ import annotations

from pathlib import Path

import pytest

from ledger.pooler import without_pooler
from ledger.settings import Settings, SettingsError, load_settings
from ledger.tokens import Role, hash_of, new_token


def test_without_anything_the_defaults_hold() -> None:
    settings = load_settings({}, {})
    assert (settings.host, settings.port, settings.thresholds) == ("127.0.0.1", 8000, (80, 95))
    assert settings.doc_base_url == "https://asixto.com/docs/gateway/errors"
    assert settings.database_url is None
    assert len(settings.tokens) == 0


@pytest.mark.parametrize(
    ("variable", "text", "field", "value"),
    [
        ("LEDGER_HOST", "::1", "host", "::1"),
        ("LEDGER_PORT", "0", "port", 0),
        ("LEDGER_DATA_DIR", "/srv/ledger", "data_dir", Path("/srv/ledger")),
        ("LEDGER_DATABASE_URL", "postgresql://h/d", "database_url", "postgresql://h/d"),
        ("LEDGER_READ_DATABASE_URL", "postgres://h/d", "read_database_url", "postgres://h/d"),
        (
            "LEDGER_OWNER_DATABASE_URL",
            "postgresql+asyncpg://h/d",
            "owner_database_url",
            "postgresql+asyncpg://h/d",
        ),
        ("LEDGER_REDIS_URL", "redis://h", "redis_url", "redis://h"),
        ("LEDGER_WEBHOOKS", "hooks.toml", "webhooks", Path("hooks.toml")),
        ("LEDGER_REDIS_PREFIX", "gw:", "redis_prefix", "gw:"),
        ("LEDGER_REDIS_STREAM_LENGTH", "5000", "redis_stream_length", 5_000),
        ("LEDGER_CATALOG", "prices.toml", "catalog", Path("prices.toml")),
        ("LEDGER_SIMULATED_CLOCK", "1", "simulated_clock", True),
        ("LEDGER_NO_SWEEPS", "true", "no_sweeps", True),
        ("LEDGER_NO_SWEEPS", "false", "no_sweeps", False),
        ("LEDGER_POSTGRES_BIN", "/opt/pg/bin", "postgres_bin", Path("/opt/pg/bin")),
        ("LEDGER_DOC_BASE_URL", "https://docs.test/e", "doc_base_url", "https://docs.test/e"),
        ("LEDGER_THRESHOLDS", "50, 75,100", "thresholds", (50, 75, 100)),
        ("LEDGER_QUEUE_SIZE", "5", "queue_size", 5),
        ("LEDGER_BATCH_SIZE", "64", "batch_size", 64),
        ("LEDGER_POOL_SIZE", "2", "pool_size", 2),
        ("LEDGER_READ_POOL_SIZE", "3", "read_pool_size", 3),
        ("LEDGER_PORT", "", "port", 8000),
    ],
)
def test_each_setting_has_a_variable(variable: str, text: str, field: str, value: object) -> None:
    assert getattr(load_settings({}, {variable: text}), field) == value


def test_an_option_comes_before_its_variable_and_an_option_not_given_does_not() -> None:
    settings = load_settings({"port": 9000, "host": None}, {"LEDGER_PORT": "9001", "LEDGER_HOST": "0.0.0.0"})  # noqa: S104
    assert (settings.port, settings.host) == (9000, "0.0.0.0")  # noqa: S104


@pytest.mark.parametrize(
    ("variable", "text", "reason"),
    [
        ("LEDGER_PORT", "65536", "<= 65535"),
        ("LEDGER_PORT", "http", "expected `int`"),
        ("LEDGER_SIMULATED_CLOCK", "maybe", "expected `bool`"),
        ("LEDGER_DATABASE_URL", "mysql://u:pa55word@h/d", "matching"),
        ("LEDGER_DATABASE_URL", "postgresql://u:pa55word@h/d?pooler=statement", "matching"),
        ("LEDGER_DOC_BASE_URL", "ftp://x", "matching"),
        ("LEDGER_REDIS_URL", "http://x", "matching"),
        ("LEDGER_REDIS_PREFIX", "two words", "matching"),
        ("LEDGER_REDIS_STREAM_LENGTH", "10", ">= 100"),
        ("LEDGER_THRESHOLDS", "80,x", "expected `int`"),
        ("LEDGER_THRESHOLDS", "0,95", ">= 1"),
        ("LEDGER_THRESHOLDS", "95,80", "ascending"),
        ("LEDGER_THRESHOLDS", "80,80", "ascending"),
        ("LEDGER_BATCH_SIZE", "0", ">= 1"),
        ("LEDGER_TOKEN_HASHES", "admin:pa55word", "role:sha256hex"),
    ],
)
def test_a_bad_value_is_refused_by_name_and_not_shown(variable: str, text: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=f"^{variable}: .*{reason}") as refusal:
        load_settings({}, {variable: text})
    assert "pa55word" not in str(refusal.value)


def test_a_url_says_whether_a_pooler_is_there() -> None:
    url = "postgresql://h/d?pooler=transaction"
    assert load_settings({}, {"LEDGER_DATABASE_URL": url}).database_url == url
    assert without_pooler(f"{url}&sslmode=require") == ("postgresql://h/d?sslmode=require", True)
    assert without_pooler("postgresql://u:p%40ss@h/d?host=/run") == ("postgresql://u:p%40ss@h/d?host=/run", False)


def test_settings_show_no_password() -> None:
    variables = ("DATABASE_URL", "READ_DATABASE_URL", "OWNER_DATABASE_URL")
    settings = load_settings({}, {f"LEDGER_{name}": "postgresql://u:pa55word@h/d" for name in variables})
    assert repr(settings) == str(settings) == "Settings(0 tokens)"


def test_tokens_come_as_hashes_and_in_full() -> None:
    hashed, plain = new_token(Role.ADMIN), new_token(Role.GATEWAY)
    environment = {"LEDGER_TOKEN_HASHES": hash_of(hashed, Role.ADMIN), "LEDGER_GATEWAY_TOKEN": plain}
    tokens = load_settings({}, environment).tokens
    assert (tokens.role_of(hashed), tokens.role_of(plain), tokens.role_of("")) == (
        Role.ADMIN,
        Role.GATEWAY,
        None,
    )


def test_root_and_a_user_have_a_data_directory_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert Settings().data_dir == Path("/var/lib/gateway-ledger")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_DATA_HOME", "/srv/data")
    assert Settings().data_dir == Path("/srv/data/gateway-ledger")
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", "/home/ana")
    assert Settings().data_dir == Path("/home/ana/.local/share/gateway-ledger")
