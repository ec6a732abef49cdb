"""Schemathesis reads the OpenAPI document and sends what it allows, and what it does not, to every route.

No answer is a 5xx but the one that is on purpose; every status, type, header and body is one that the document has; and
what the document forbids is refused. `LEDGER_TEST_EXAMPLES=2000` makes a long run.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis import Case, CheckContext, Response
from schemathesis.specs.openapi import checks

from ledger.api import openapi
from ledger.api.bodies import IDENTIFIER
from ledger.tokens import Role
from tests.support.client import connect
from tests.support.service import Service

EXAMPLES: Final = int(os.environ.get("LEDGER_TEST_EXAMPLES", "20"))
THERE: Final = {"account_id": ("acme", "other"), "job_id": ("settled", "open")}
"""The accounts and jobs that there are: half of all requests are about one of them."""

schema: Final = schemathesis.openapi.from_dict(msgspec.json.decode(openapi.document()))
schema.config.generation.update(with_security_parameters=False)  # The token is the session's.


def only_on_purpose(ctx: CheckContext, response: Response, case: Case[Any]) -> None:
    """Fail on a 5xx, but for an operation without a price (P1)."""
    answers = [(response.status_code, response.json())] if response.status_code >= 500 else []
    if case.path == "/v1/batch" and response.status_code == 200:
        answers = [(result["status"], result["body"]) for result in response.json()["results"]]
    for status, body in answers:
        assert status < 500 or body["error"]["code"] == "operation_not_priced", response.text


CHECKS: Final = [
    only_on_purpose,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
    checks.unsupported_method,
]


@dataclass
class Target:
    """The service, reached over one connection, as its administrator."""

    service: Service
    session: requests.Session


@pytest.fixture(scope="module")
def target(module_server: Service) -> Iterator[Target]:
    with requests.Session() as session:
        session.headers.update(module_server.headers(Role.ADMIN))
        yield Target(module_server, session)


@pytest.fixture(scope="module", autouse=True)
def accounts(module_server: Service) -> None:
    asyncio.run(_open_accounts(module_server))


async def _open_accounts(service: Service) -> None:
    async with connect(service) as client:
        for name in THERE["account_id"]:
            await client.open_account(name, 1_000_000)
            await client.reserve(name, "settled")
            await client.settle(name, "settled", result={"kept": True})
            await client.reserve(name, "open", ttl_seconds=86_400)


@schema.hook
def map_path_parameters(ctx: schemathesis.HookContext, parameters: dict[str, object] | None) -> object:
    """Ask of things that there are about as often as of things that there are not."""
    if not parameters:
        return parameters
    return {name: _aimed(value, THERE[name]) if name in THERE else value for name, value in parameters.items()}


def _aimed(value: object, there: tuple[str, ...]) -> object:
    """Put what there is in the place of half the names; what is no name is meant to be none."""
    if not isinstance(value, str) or not re.fullmatch(IDENTIFIER, value) or len(value) % 2 == 0:
        return value
    return there[len(value) // 2 % len(there)]


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)
def test_every_answer_is_as_the_document_says(case: Case[Any], target: Target) -> None:
    answer = case.call(base_url=target.service.url, session=target.session)
    # A batch is answered with 200 though commands in it are refused, for their shape too: none touches its neighbours.
    checked = [each for each in CHECKS if case.path != "/v1/batch" or each is not checks.negative_data_rejection]
    case.validate_response(answer, checks=checked)


async def test_the_books_are_clean_after_all_that(module_server: Service) -> None:
    async with connect(module_server) as client:
        await client.assert_audit_clean()
