"""What the service can be told, by options and by environment variables named `LEDGER_` + the name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from ledger.embedded import default_data_dir
from ledger.tokens import Role, TokenTable, variable_of

PREFIX: Final = "LEDGER_"

Port = Annotated[int, Meta(ge=0, le=65_535)]
Percent = Annotated[int, Meta(ge=1, le=100)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Bytes = Annotated[int, Meta(ge=1024 * 1024)]
BatchSize = Annotated[int, Meta(ge=1, le=4_096)]
PostgresUrl = Annotated[
    str, Meta(pattern=r"^postgres(ql)?(\+asyncpg)?://(?!.*[?&]pooler=(?!transaction(&|$)))")  # See `ledger.pooler`.
]
RedisUrl = Annotated[str, Meta(pattern=r"^(rediss?|unix)://")]
RedisPrefix = Annotated[str, Meta(pattern=r"^[!-~]+$", max_length=100)]
StreamLength = Annotated[int, Meta(ge=100, le=10_000_000)]
HttpUrl = Annotated[str, Meta(pattern=r"^https?://")]
LogFormat = Annotated[str, Meta(pattern="^(auto|json|console)$")]
LogLevel = Annotated[str, Meta(pattern="^(debug|info|warning|error)$")]
LogRequests = Annotated[str, Meta(pattern="^(all|errors)$")]


class SettingsError(ValueError):
    """A setting cannot be used; the message names its environment variable and says why."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the service can be told. Each field's variable is `LEDGER_` + its name in capitals."""

    host: str = "127.0.0.1"
    """The address to listen on."""
    port: Port = 8000
    """The port to listen on; 0 takes a free one."""
    data_dir: Path = msgspec.field(default_factory=default_data_dir)
    """Where the embedded PostgreSQL and the development tokens are."""
    database_url: PostgresUrl | None = None
    """The database, as the service's own role; None runs the embedded PostgreSQL."""
    read_database_url: PostgresUrl | None = None
    """A replica for reports that may lag behind; None reads from `database_url`."""
    owner_database_url: PostgresUrl | None = None
    """The database, as the role that owns the tables: for `migrate` only."""
    redis_url: RedisUrl | None = None
    """The Redis that events and balances are published in; None does without."""
    redis_prefix: RedisPrefix = "ledger:"
    """What the names of keys and channels in Redis begin with."""
    redis_stream_length: StreamLength = 100_000
    """How many events each stream in Redis keeps, or a few more."""
    webhooks: Path | None = None
    """A file of endpoints that events are delivered to; None delivers to nobody."""
    catalog: Path | None = None
    """A price catalog in place of the one that comes with the package."""
    simulated_clock: bool = False
    """Whether time stands still until `PUT /v1/clock` moves it."""
    no_sweeps: bool = False
    """Whether sweeps run only when asked."""
    postgres_bin: Path | None = None
    """A folder with PostgreSQL's programs, in place of the wheel's."""
    doc_base_url: HttpUrl = "https://asixto.com/docs/gateway/errors"
    """Where error codes are explained (contract E1)."""
    thresholds: tuple[Percent, ...] = (80, 95)
    """The percentages at which `credits.threshold_reached` is raised (contract V1), ascending."""
    queue_size: Count = 10_000
    """How many commands may wait for a batch; past that, 503."""
    queue_bytes: Bytes = 64 * 1024 * 1024
    """How many bytes the commands that wait may take; past that, 503."""
    requests_max: Count = 4_000
    """How many requests may be under way; past that, 503."""
    body_bytes: Bytes = 256 * 1024 * 1024
    """How many bytes the bodies of requests that are under way may take; past that, 503."""
    batch_size: BatchSize = 256
    """How many commands one batch, which is one transaction, may hold."""
    pool_size: Count = 4
    """Connections for what operators ask for: the clock, quotes, small writes."""
    read_pool_size: Count = 8
    """Connections for reading."""
    log_format: LogFormat = "auto"
    """How logs are written: `json`, `console`, or `auto`: the latter where standard error is a terminal."""
    log_level: LogLevel = "info"
    """The least level that is logged."""
    log_requests: LogRequests = "all"
    """Which requests have a line in the log: `all`, or `errors`, those that were answered with a status from 400 on."""
    tokens: TokenTable = msgspec.field(default_factory=TokenTable)
    """The tokens accepted: of `LEDGER_TOKEN_HASHES` and of `LEDGER_GATEWAY_TOKEN`, `…READER…`, `…ADMIN…`."""

    def __repr__(self) -> str:  # URLs have passwords in them.
        return f"Settings({len(self.tokens)} tokens)"


def load_settings(options: Mapping[str, object], environment: Mapping[str, str]) -> Settings:
    """Makes the settings of options that were given (not None) and, for the rest, of environment variables.

    A variable that is set but empty counts as not set.

    Raises:
        SettingsError: a value is not of its field's kind, or out of its bounds.
    """
    values: dict[str, object] = {}
    for name in Settings.__struct_fields__:
        value = options.get(name)
        if value is None:
            value = environment.get(PREFIX + name.upper()) or None
        if value is not None and name != "tokens":
            values[name] = _split(value) if name == "thresholds" else value
    values["tokens"] = _tokens(environment)
    try:
        settings = msgspec.convert(values, Settings, strict=False, dec_hook=_decode)
    except msgspec.ValidationError as error:
        raise SettingsError(_message(error)) from error
    if not settings.thresholds or list(settings.thresholds) != sorted(set(settings.thresholds)):
        raise SettingsError(f"{PREFIX}THRESHOLDS: expected ascending percentages, such as 80,95")
    return settings


def _tokens(environment: Mapping[str, str]) -> TokenTable:
    try:
        hashed = TokenTable.of_hashes(environment.get(f"{PREFIX}TOKEN_HASHES", ""))
    except ValueError as error:
        raise SettingsError(f"{PREFIX}TOKEN_HASHES: {error}") from error
    plain = {environment.get(variable_of(role), ""): role for role in Role}
    plain.pop("", None)
    return hashed | TokenTable.of_tokens(plain)


def _split(value: object) -> object:
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def _decode(kind: type, value: object) -> Any:
    if kind is Path and isinstance(value, str):
        return Path(value)
    if isinstance(value, kind):
        return value
    raise NotImplementedError(f"a value of {kind}")


def _message(error: msgspec.ValidationError) -> str:
    """Turns "Expected `int` - at `$.port`" into "LEDGER_PORT: expected `int`". It never shows the value."""
    text, _, path = str(error).partition(" - at `$.")
    name = re.split(r"[^a-z_]", path, maxsplit=1)[0]
    return f"{PREFIX}{name.upper()}: {text[0].lower()}{text[1:]}"
