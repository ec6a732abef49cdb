"""The OpenAPI document as tests use it: references followed, values checked against schemas."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

from jsonschema import Draft202012Validator

from tests.support.client import Answer

METHODS = ("get", "put", "post", "patch", "delete", "head", "options", "trace")


class Operation(NamedTuple):
    """One operation of the document."""

    method: str
    path: str
    shown: dict[str, Any]

    @property
    def id(self) -> str:
        """Its `operationId`."""
        return str(self.shown["operationId"])

    def matches(self, method: str, path: str) -> bool:
        """Return whether a request goes to it."""
        pattern = re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(self.path))
        return method.lower() == self.method and re.fullmatch(pattern, path) is not None


class Document:
    """An OpenAPI document."""

    def __init__(self, shown: dict[str, Any]) -> None:
        self.shown = shown

    @cached_property
    def operations(self) -> list[Operation]:
        """Every operation."""
        return [
            Operation(method, path, item[method])
            for path, item in self.shown["paths"].items()
            for method in METHODS
            if method in item
        ]

    def operation(self, method: str, path: str) -> Operation | None:
        """Return the operation that a request goes to; a path that is written out goes before a pattern."""
        found = [operation for operation in self.operations if operation.matches(method, path)]
        return min(found, key=lambda operation: operation.path.count("{"), default=None)

    def follow(self, value: Any) -> Any:
        """Return what a reference stands for; anything else stands for itself."""
        while isinstance(value, dict) and set(value) == {"$ref"}:
            value = self.at(value["$ref"])
        return value

    def at(self, pointer: str) -> Any:
        """Return what a reference within the document points to."""
        assert pointer.startswith("#/")
        value: Any = self.shown
        for part in pointer.removeprefix("#/").split("/"):
            value = value[part.replace("~1", "/").replace("~0", "~")]
        return value

    def responses(self, operation: Operation) -> dict[int, dict[str, Any]]:
        """Return the responses of an operation, by status."""
        return {int(status): self.follow(response) for status, response in operation.shown["responses"].items()}

    def codes(self, operation: Operation, status: int) -> set[str]:
        """Return the error codes that an operation may answer with a status."""
        if status < 400:
            return set()
        return set(self.responses(operation)[status]["content"]["application/json"]["examples"])

    def faults(self, schema: dict[str, Any], value: Any) -> list[str]:
        """Return what is wrong with a value."""
        whole = {**schema, "components": self.shown["components"]}
        validator = Draft202012Validator(whole, format_checker=Draft202012Validator.FORMAT_CHECKER)
        return [f"{error.json_path}: {error.message[:300]}" for error in validator.iter_errors(value)]

    def strict(self) -> Document:
        """Return the same document, where objects have no fields but those that are described."""
        shown = copy.deepcopy(self.shown)
        for schema in shown["components"]["schemas"].values():
            schema.setdefault("additionalProperties", False)
        return Document(shown)

    def check(self, operation: Operation, answer: Answer) -> None:
        """Fail unless an operation may give an answer: its status, headers, type and body."""
        response = self.responses(operation).get(answer.status)
        assert response is not None, (operation.id, answer)
        for name, described in response["headers"].items():
            header = self.follow(described)
            if header.get("required"):
                assert name in answer.headers, (operation.id, name)
            if name in answer.headers and header["schema"].get("type") == "integer":
                assert int(answer.headers[name]) >= header["schema"].get("minimum", 0)
        assert "Retry-After" not in answer.headers or "Retry-After" in response["headers"], operation.id
        content = _content_of(response, answer.headers["Content-Type"])
        body = answer.body.decode() if isinstance(answer.body, bytes) else answer.body
        assert self.faults(content["schema"], body) == [], (operation.id, body)

    def references(self) -> Iterator[str]:
        """Yield every reference."""
        pending: list[Any] = [self.shown]
        while pending:
            value = pending.pop()
            if isinstance(value, dict):
                if isinstance(value.get("$ref"), str):
                    yield value["$ref"]
                pending += value.values()
            elif isinstance(value, list):
                pending += value


def _content_of(response: dict[str, Any], media_type: str) -> Any:
    """Return what is described of a media type, whatever its charset."""
    wanted = media_type.split(";")[0]
    (found,) = [shown for name, shown in response["content"].items() if name.split(";")[0] == wanted]
    return found
