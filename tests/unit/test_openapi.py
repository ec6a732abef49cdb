"""The OpenAPI document is valid, tells of every route and nothing else, and its examples are what they illustrate."""

from __future__ import annotations

import hashlib
import re
from typing import Any, cast

import msgspec
import pytest
from jsonschema import Draft202012Validator
from litestar import Litestar
from litestar.routes import HTTPRoute

from ledger import app
from ledger.api import bodies, jobs, openapi
from ledger.api.errors import STATUS
from ledger.api.openapi import examples, schemas
from ledger.api.openapi.errors import EXPLAINED
from ledger.api.openapi.fields import FIELDS
from ledger.api.openapi.operations import OPERATIONS
from ledger.api.services import Services
from ledger.settings import Settings
from tests.support.openapi import Document

TEMPORARY = {
    "request_in_flight",
    "period_quota_exhausted",
    "concurrency_limit_reached",
    "call_concurrency_limit_reached",
    "upstream_unavailable",
}


@pytest.fixture(scope="module")
def document() -> Document:
    return Document(msgspec.json.decode(openapi.document()))


def test_it_is_made_once() -> None:
    assert openapi.document() is openapi.document()


def test_its_structure(document: Document) -> None:
    shown = document.shown
    assert re.fullmatch(r"3\.1\.\d+", shown["openapi"])
    assert set(shown) == {"openapi", "info", "servers", "tags", "paths", "components"}
    assert set(shown["info"]) == {"title", "version", "description"}
    assert all(path.startswith("/") for path in shown["paths"])
    tags = [tag["name"] for tag in shown["tags"]]
    for operation in document.operations:
        assert set(operation.shown) - {"requestBody"} == {
            *("operationId", "tags", "summary", "description", "security", "parameters", "responses")
        }
        assert set(operation.shown["tags"]) <= set(tags)
        for response in document.responses(operation).values():
            assert set(response) == {"description", "headers", "content"}
            assert response["headers"]["X-Request-Id"]
    for kind, components in shown["components"].items():
        for name in components:
            assert re.fullmatch(r"[A-Za-z0-9._-]+", name), (kind, name)


def test_every_reference_leads_somewhere_and_every_component_is_used(document: Document) -> None:
    used = set(document.references())
    for reference in used:
        assert document.at(reference) is not None
    for kind in ("schemas", "responses", "parameters", "examples", "headers"):
        names = document.shown["components"][kind]
        assert {f"#/components/{kind}/{name}" for name in names} == {
            reference for reference in used if reference.startswith(f"#/components/{kind}/")
        }


def test_every_schema_is_a_schema(document: Document) -> None:
    for schema in document.shown["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    for parameter in document.shown["components"]["parameters"].values():
        Draft202012Validator.check_schema(parameter["schema"])


def test_operation_ids_are_unique(document: Document) -> None:
    ids = [operation.id for operation in document.operations]
    assert len(ids) == len(set(ids)) == len(OPERATIONS)
    assert all(re.fullmatch(r"[a-z][A-Za-z]+", name) for name in ids)


def test_the_parameters_of_paths_are_declared(document: Document) -> None:
    for operation in document.operations:
        parameters = [document.follow(parameter) for parameter in operation.shown["parameters"]]
        names = [parameter["name"] for parameter in parameters if parameter["in"] == "path"]
        assert names == re.findall(r"\{(\w+)\}", operation.path)
        assert all(parameter["required"] for parameter in parameters if parameter["in"] == "path")
        assert len({(parameter["in"], parameter["name"]) for parameter in parameters}) == len(parameters)


@pytest.mark.filterwarnings("ignore:.*deprecated inferred style")  # Litestar's, about how path parameters are declared
def test_it_tells_of_every_route_and_of_nothing_else(document: Document) -> None:
    described = {(operation.method.upper(), operation.path) for operation in document.operations}
    assert described == {*_framework_routes(), *_hot_routes()}


def _framework_routes() -> set[tuple[str, str]]:
    """Litestar's routes, less the OPTIONS that it adds to each."""
    inner: Any = app.make_app(cast("Services", None), Settings())
    while not isinstance(inner, Litestar):
        inner = inner._app
    return {
        (method, route.path_format)
        for route in inner.routes
        if isinstance(route, HTTPRoute)
        for method in route.methods
        if method != "OPTIONS"
    }


def _hot_routes() -> set[tuple[str, str]]:
    routes = [jobs._BATCH, jobs._JOB, *jobs._ACTIONS.values()]
    for route in routes:
        found = jobs._find(route.template)
        assert found is not None
        assert found[0] is route
    return {(method, route.template) for route in routes for method in route.methods}


def test_every_body_and_every_success_has_examples_and_all_are_valid(document: Document) -> None:
    for operation in document.operations:
        contents = list(operation.shown.get("requestBody", {"content": {}})["content"].values())
        for response in document.responses(operation).values():
            contents += response["content"].values()
        for content in contents:
            assert content["examples"], operation.id
            for name, example in content["examples"].items():
                value = document.follow(example)["value"]
                assert document.faults(content["schema"], value) == [], (operation.id, name)


def test_examples_have_no_fields_but_those_described(document: Document) -> None:
    strict = document.strict()
    for operation in strict.operations:
        for response in strict.responses(operation).values():
            for content in response["content"].values():
                for name, example in content["examples"].items():
                    value = strict.follow(example)["value"]
                    assert strict.faults(content["schema"], value) == [], (operation.id, name)


def test_requests_in_examples_are_read(document: Document) -> None:
    for operation in OPERATIONS:
        if operation.body is not None:
            kind: type = getattr(bodies, operation.body.kind.__name__, operation.body.kind)
            for example in operation.body.examples.values():
                bodies.decoder(kind)(msgspec.json.encode(example))
    for command in examples.BATCH["commands_of_one_account"]["commands"]:
        assert jobs._item_command(msgspec.Raw(msgspec.json.encode(command))).job_id == command["job_id"]


def test_examples_of_parameters_are_valid(document: Document) -> None:
    for parameter in document.shown["components"]["parameters"].values():
        assert document.faults(parameter["schema"], parameter["example"]) == [], parameter["name"]


def test_errors_have_the_status_of_their_code_and_every_code_appears(document: Document) -> None:
    seen = set()
    for operation in document.operations:
        for status, response in document.responses(operation).items():
            if status < 400:
                continue
            codes = document.codes(operation, status)
            seen |= codes
            assert codes
            assert {STATUS[code] for code in codes} == {status}
            for code in codes:
                value = document.follow(response["content"]["application/json"]["examples"][code])["value"]
                assert value["error"]["code"] == code
                assert set(value["error"]) == {"code", "message", "request_id", "doc_url", "details"}
                assert ("retry_after" in value["error"]["details"]) == (code in TEMPORARY)
            assert ("Retry-After" in response["headers"]) == bool(codes & TEMPORARY)
    assert seen == set(STATUS) == set(EXPLAINED)


def test_an_error_of_another_status_is_not_valid(document: Document) -> None:
    reserve = document.operation("PUT", "/v1/accounts/a/jobs/j")
    assert reserve is not None
    schema = document.responses(reserve)[402]["content"]["application/json"]["schema"]
    other = document.shown["components"]["examples"]["validation_error"]["value"]
    assert document.faults(schema, other) != []


def test_who_needs_a_token(document: Document) -> None:
    open_ids = {operation.id for operation in document.operations if not operation.shown["security"]}
    assert open_ids == {"getLiveness", "getReadiness", "getMetrics", "getOpenapi"}
    for operation in document.operations:
        statuses = set(document.responses(operation))
        roles = [role for scheme in operation.shown["security"] for role in scheme["bearer"]]
        assert (401 in statuses) == bool(roles)
        assert (403 in statuses) == (roles in (["gateway"], ["admin"]))


def test_every_field_is_described_and_no_description_is_left_over(document: Document) -> None:
    used = set()
    for name, schema in document.shown["components"]["schemas"].items():
        assert schema["description"]
        used.add(name)
        for field, described in schema["properties"].items():
            assert described.get("description"), f"{name}.{field}"
            used.add(f"{name}.{field}" if f"{name}.{field}" in FIELDS else field)
    assert set(FIELDS) <= used


def test_instants_and_quantities_are_described_as_such(document: Document) -> None:
    job = document.shown["components"]["schemas"]["JobView"]["properties"]
    assert job["created_at"]["format"] == job["expired_at"]["format"] == "date-time"
    line = document.shown["components"]["schemas"]["LineBody"]
    assert document.faults(line, {"operation": "a", "quantity": 1.5}) == []
    refund = document.shown["components"]["schemas"]["RefundBody"]
    for credits, fits in ((500, True), (500.0, True), (None, True), (1.5, False), (2**53, False)):
        assert (document.faults(refund, {"refund_id": "r", "credits": credits}) == []) == fits, credits


@pytest.mark.parametrize(
    ("shown", "read"),
    [
        (schemas.ReserveBody, bodies.ReserveBody),
        (schemas.SettleBody, bodies.SettleBody),
        (schemas.ITEMS[0], jobs.ReserveItem),
        (schemas.ITEMS[1], jobs.SettleItem),
    ],
)
def test_the_structs_that_are_shown_are_those_that_are_read(
    shown: type[msgspec.Struct], read: type[msgspec.Struct]
) -> None:
    pairs = zip(msgspec.structs.fields(shown), msgspec.structs.fields(read), strict=True)
    assert all((one.name, one.type, one.required) == (other.name, other.type, other.required) for one, other in pairs)
    assert shown.__struct_config__.tag == read.__struct_config__.tag
    assert shown.__struct_config__.forbid_unknown_fields


def test_the_journal_in_the_examples_can_be_recomputed() -> None:
    previous = "0" * 64
    for entry in examples.ENTRIES["with_the_text_that_was_hashed"]["data"]:
        assert entry["previous_hash"] == previous
        previous = hashlib.sha256((previous + entry["canonical"]).encode()).hexdigest()
        assert entry["hash"] == previous
