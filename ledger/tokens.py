"""Access tokens: what they look like, which role each has, and how they are kept (as SHA-256 hashes only).

A token carries 256 random bits, so a plain hash of it cannot be guessed back, and looking the hash up takes a
time that tells nothing about any token.
"""

from __future__ import annotations

import enum
import hashlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

TOKENS_FILE: Final = "tokens.env"


class Role(enum.StrEnum):
    """What the bearer of a token may do."""

    GATEWAY = "gateway"
    """Jobs, and every read."""
    READER = "reader"
    """Every read."""
    ADMIN = "admin"
    """Everything."""


class TokenTable:
    """The roles of the tokens that are accepted. A role may have several: that is how tokens are changed."""

    __slots__ = ("_roles",)

    def __init__(self, roles: Mapping[bytes, Role] | None = None) -> None:
        """Takes the role of each token's SHA-256 digest."""
        self._roles: dict[bytes, Role] = dict(roles or {})

    @classmethod
    def of_tokens(cls, tokens: Mapping[str, Role]) -> TokenTable:
        """Makes the table of tokens given in full."""
        return cls({_digest(token): role for token, role in tokens.items()})

    @classmethod
    def of_hashes(cls, text: str) -> TokenTable:
        """Reads `role:sha256hex,role:sha256hex,…`.

        Raises:
            ValueError: an item is not of that form; the message shows no hash.
        """
        return cls(dict(_read_hash(item.strip()) for item in text.split(",") if item.strip()))

    def __or__(self, other: TokenTable) -> TokenTable:
        return TokenTable({**self._roles, **other._roles})

    def __len__(self) -> int:
        return len(self._roles)

    def __repr__(self) -> str:
        return f"TokenTable({len(self)} tokens)"

    def role_of(self, token: str | bytes) -> Role | None:
        """Returns the role of a token, or None if it is not one of ours."""
        return self._roles.get(_digest(token))


def new_token(role: Role) -> str:
    """Makes a random token of 256 bits, `glt_<role>_<43 characters>`."""
    return f"glt_{role}_{secrets.token_urlsafe(32)}"


def hash_of(token: str, role: Role) -> str:
    """Returns `role:sha256hex`, as `LEDGER_TOKEN_HASHES` lists them."""
    return f"{role}:{_digest(token).hex()}"


def variable_of(role: Role) -> str:
    """Returns the environment variable that holds a token of a role, such as `LEDGER_GATEWAY_TOKEN`."""
    return f"LEDGER_{role.upper()}_TOKEN"


def development_tokens(data_dir: Path) -> tuple[Path, TokenTable]:
    """Reads `<data-dir>/tokens.env`, made on the first call: a token of each role, for its owner only.

    Raises:
        ValueError: the file is there and a token is missing from it.
    """
    path = data_dir / TOKENS_FILE
    if not path.exists():
        _write_tokens(path)
    values = dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)
    missing = [variable_of(role) for role in Role if not values.get(variable_of(role))]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}: remove the file to have new tokens made")
    return path, TokenTable.of_tokens({values[variable_of(role)]: role for role in Role})


def _write_tokens(path: Path) -> None:
    """Writes the file whole or not at all."""
    lines = "".join(f"{variable_of(role)}={new_token(role)}\n" for role in Role)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(lines)
    unfinished.replace(path)


def _read_hash(item: str) -> tuple[bytes, Role]:
    role, separator, digits = item.partition(":")
    try:
        digest = bytes.fromhex(digits)
        known_role = Role(role)
    except ValueError:
        digest, known_role = b"", None
    if not separator or known_role is None or len(digest) != hashlib.sha256().digest_size:
        raise ValueError("each item must be role:sha256hex, the role one of gateway, reader, admin")
    return digest, known_role


def _digest(token: str | bytes) -> bytes:
    raw = token if isinstance(token, bytes) else token.encode("utf-8", "surrogatepass")
    return hashlib.sha256(raw).digest()
