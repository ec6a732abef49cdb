"""The endpoints that events are delivered to, read from a file when the service starts.

No message, log or representation shows a secret, nor an endpoint's URL, which may contain one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import msgspec
from msgspec import Meta
from yarl import URL

from ledger.core.account import EventType
from ledger.core.commands import Environment
from ledger.events.addresses import is_public
from ledger.events.signing import Secret
from ledger.settings import SettingsError

Name = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}\Z")]
SecretText = Annotated[str, Meta(pattern=r"^whsec_[!-~]{16,250}\Z")]
TYPES: Final[tuple[EventType, ...]] = get_args(EventType)
SECRETS_MAX: Final = 2


class InvalidEndpoints(SettingsError):
    """The file of endpoints cannot be used; the message says where and why."""


@dataclass(frozen=True, slots=True, repr=False)
class Endpoint:
    """One receiver: the events of one environment and of some types go to a URL, signed with one or two secrets."""

    name: str
    url: URL
    secrets: tuple[Secret, ...]
    environment: Environment
    types: tuple[EventType, ...]
    allow_private: bool
    from_start: bool

    def __repr__(self) -> str:
        return f"Endpoint({self.name!r})"


class _Declared(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: str
    environment: Environment
    secrets: tuple[SecretText, ...] = ()
    secret_variables: tuple[str, ...] = ()
    types: Annotated[tuple[EventType, ...], Meta(min_length=1)] = TYPES
    allow_private: bool = False
    from_start: bool = False


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    endpoints: dict[Name, dict[str, Any]]


def load_endpoints(path: Path, environment: Mapping[str, str]) -> tuple[Endpoint, ...]:
    """Return the endpoints of a TOML file, in its order; `environment` has the secrets that it names.

    Raise `InvalidEndpoints`, naming the file, the endpoint and the field.
    """
    try:
        file = msgspec.toml.decode(path.read_bytes(), type=_File)
        return tuple(_endpoint(name, declared, environment) for name, declared in file.endpoints.items())
    except OSError as error:
        raise InvalidEndpoints(f"LEDGER_WEBHOOKS: {path}: {error.strerror}") from None
    except (ValueError, msgspec.MsgspecError) as error:
        raise InvalidEndpoints(f"LEDGER_WEBHOOKS: {path}: {error}") from None


def _endpoint(name: str, declared: dict[str, Any], environment: Mapping[str, str]) -> Endpoint:
    try:
        found = msgspec.convert(declared, _Declared)
        return Endpoint(
            name=name,
            url=_url(found),
            secrets=_secrets(found, environment),
            environment=found.environment,
            types=found.types,
            allow_private=found.allow_private,
            from_start=found.from_start,
        )
    except (ValueError, msgspec.ValidationError) as error:
        raise InvalidEndpoints(f"endpoint {name}: {_without_path(error)}") from None


def _url(declared: _Declared) -> URL:
    try:
        url = URL(declared.url)
    except ValueError:
        raise ValueError("url: not a URL") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError("url: expected http:// or https:// and a host")
    if url.user is not None or url.password is not None or url.fragment:
        raise ValueError("url: must have neither a user, nor a password, nor a fragment")
    if not declared.allow_private and _is_private(url.host):
        raise ValueError("url: not a public address; `allow_private = true` allows it")
    return url


def _is_private(host: str) -> bool:
    """Tell what is private by its looks. What a name stands for is checked each time it is connected to."""
    try:
        ip_address(host)
    except ValueError:
        return host.rstrip(".").lower() == "localhost" or host.rstrip(".").lower().endswith(".localhost")
    return not is_public(host)


def _secrets(declared: _Declared, environment: Mapping[str, str]) -> tuple[Secret, ...]:
    if declared.secrets and declared.secret_variables:
        raise ValueError("give either secrets or secret_variables")
    texts = declared.secrets or tuple(_secret_of(name, environment) for name in declared.secret_variables)
    if not 1 <= len(texts) <= SECRETS_MAX:
        raise ValueError("secrets: one is needed, and at most two are active")
    if len(set(texts)) < len(texts):
        raise ValueError("secrets: the two are the same")
    return tuple(Secret(text) for text in texts)


def _secret_of(variable: str, environment: Mapping[str, str]) -> str:
    try:
        return msgspec.convert(environment.get(variable) or None, SecretText)
    except msgspec.ValidationError:
        expected = "whsec_ and at least 16 more printable characters"
        raise ValueError(f"secret_variables: {variable} is not set to a secret ({expected})") from None


def _without_path(error: Exception) -> str:
    """Turn "Expected `str` - at `$.url`" into "url: expected `str`"."""
    text, _, path = str(error).partition(" - at `$.")
    return f"{path.rstrip('`')}: {text[0].lower()}{text[1:]}" if path else text
