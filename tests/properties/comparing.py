"""Comparing what the model expects with what a system answered, so that a difference can be read."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from .model_answers import ABSENT, Expected
from .model_prices import Json


def differences(expected: Any, actual: Any, path: str = "") -> list[str]:
    """Every place where `actual` is not as the model expects; what the model does not predict is free."""
    if isinstance(expected, dict):
        if not isinstance(actual, dict):
            return [told(path, expected, actual)]
        return [line for name in expected for line in field_differences(expected, actual, name, path)]
    if isinstance(expected, list):
        if not isinstance(actual, list):
            return [told(path, expected, actual)]
        return list_differences(expected, actual, path)
    if path.endswith("usd") and expected is not None and isinstance(actual, str):
        return [] if Decimal(expected) == Decimal(actual) else [told(path, expected, actual)]
    same = expected == actual and isinstance(expected, bool) == isinstance(actual, bool)
    return [] if same else [told(path, expected, actual)]


def field_differences(expected: Json, actual: Json, name: str, path: str) -> list[str]:
    """The differences of one field: it may have to be absent, and an environment without quotas may be."""
    inner = f"{path}.{name}" if path else name
    if expected[name] is ABSENT:
        return [] if name not in actual else [told(inner, ABSENT, actual[name])]
    if name in actual:
        return differences(expected[name], actual[name], inner)
    if expected[name] is None and path.endswith("environments"):
        return []
    if name == "details" and all(value is ABSENT for value in expected[name].values()):
        return []
    return [told(inner, expected[name], ABSENT)]


def list_differences(expected: list[Any], actual: list[Any], path: str) -> list[str]:
    """The differences of two lists; grants and lines of usage have no order, they are told apart by name."""
    rows = [row for row in [*expected, *actual] if isinstance(row, dict)]
    for key, sign in (("grant_id", "remaining"), ("operation", "refunded_credits")):
        if rows and all(key in row and sign in row for row in rows):
            by_key = {row[key]: row for row in actual}
            wanted = {row[key]: row for row in expected}
            extra = [told(f"{path}[{name}]", ABSENT, by_key[name]) for name in by_key if name not in wanted]
            return extra + [
                line
                for name, row in wanted.items()
                for line in differences(row, by_key.get(name, ABSENT), f"{path}[{name}]")
            ]
    if len(expected) != len(actual):
        return [told(path, expected, actual)]
    pairs = enumerate(zip(expected, actual, strict=True))
    return [line for i, (one, other) in pairs for line in differences(one, other, f"{path}[{i}]")]


def told(path: str, expected: Any, actual: Any) -> str:
    """One difference as a line."""
    return f"{path or 'the body'}: expected {shown(expected)}, got {shown(actual)}"


def shown(value: Any) -> str:
    """A value as JSON, on one line."""
    return json.dumps(value, default=str, ensure_ascii=False)


def answer_differences(expected: Expected, status: int, body: Json | None) -> list[str]:
    """The differences of a whole answer: status, code, and each predicted field."""
    found = [] if expected.status == status else [f"status: expected {expected.status}, got {status}"]
    code = ((body or {}).get("error") or {}).get("code")
    if expected.code != code:
        found.append(f"code: expected {expected.code}, got {code}")
    if not found and expected.body is not None:
        found = differences(expected.body, body)
    return found
