"""The file of endpoints: what is in it holds, what is wrong with it is said, and no secret is ever shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.events.endpoints import TYPES, Endpoint, InvalidEndpoints, load_endpoints
from ledger.events.signing import Secret

SECRET, OTHER = "whsec_0123456789abcdef", "whsec_fedcba9876543210"
GOOD = f"""
[endpoints.billing]
url = "https://billing.example/hooks?key=hidden-part"
environment = "live"
secrets = ["{SECRET}", "{OTHER}"]
types = ["period.closed", "job.expired"]

[endpoints.local-test]
url = "http://127.0.0.1:9000/"
environment = "test"
secret_variables = ["LOCAL_SECRET"]
allow_private = true
from_start = true
"""


def load(tmp_path: Path, text: str, **environment: str) -> tuple[Endpoint, ...]:
    path = tmp_path / "hooks.toml"
    path.write_text(text)
    return load_endpoints(path, environment)


def test_what_the_file_says_holds(tmp_path: Path) -> None:
    billing, local = load(tmp_path, GOOD, LOCAL_SECRET=SECRET)
    assert (billing.name, str(billing.url)) == ("billing", "https://billing.example/hooks?key=hidden-part")
    assert (billing.environment, billing.types) == ("live", ("period.closed", "job.expired"))
    assert [secret.sign(b"m") for secret in billing.secrets] == [Secret(t).sign(b"m") for t in (SECRET, OTHER)]
    assert (billing.allow_private, billing.from_start) == (False, False)
    assert (local.environment, local.types, local.allow_private, local.from_start) == ("test", TYPES, True, True)
    assert [secret.sign(b"m") for secret in local.secrets] == [Secret(SECRET).sign(b"m")]


def test_an_endpoint_shows_neither_its_secrets_nor_its_url(tmp_path: Path) -> None:
    shown = repr(load(tmp_path, GOOD, LOCAL_SECRET=SECRET))
    assert "billing" in shown
    assert "whsec" not in shown
    assert "hidden-part" not in shown


FIELDS = {"url": '"https://h.example/"', "environment": '"live"', "secrets": f'["{SECRET}"]'}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"url": None}, "required field `url`"),
        ({"url": "7"}, "url: expected `str`"),
        ({"url": '"ftp://h.example/"'}, "url: expected http:// or https://"),
        ({"url": '"https:///path"'}, "url: "),
        ({"url": '"https://h.example:99999/"'}, "url: not a URL"),
        ({"url": '"https://user:hidden-part@h.example/"'}, "url: must have neither a user"),
        ({"url": '"https://h.example/#part"'}, "nor a fragment"),
        ({"url": '"https://127.0.0.1/"'}, "url: not a public address"),
        ({"url": '"https://[::1]/"'}, "url: not a public address"),
        ({"url": '"https://LOCALHOST./"'}, "url: not a public address"),
        ({"url": '"https://a.localhost/"'}, "url: not a public address"),
        ({"url": '"http://169.254.169.254/latest/meta-data"'}, "url: not a public address"),
        ({"environment": None}, "required field `environment`"),
        ({"environment": '"prod"'}, "environment: invalid enum value 'prod'"),
        ({"secrets": None}, "secrets: one is needed"),
        ({"secrets": "[]"}, "secrets: one is needed"),
        ({"secrets": f'["{SECRET}", "{OTHER}", "whsec_third-hidden-part"]'}, "at most two are active"),
        ({"secrets": f'["{SECRET}", "{SECRET}"]'}, "the two are the same"),
        ({"secrets": '["hidden-part-of-this"]'}, "secrets[0]: expected `str` matching"),
        ({"secrets": '["whsec_hidden-part"]'}, "secrets[0]: expected `str` matching"),
        ({"secrets": f'["{SECRET}\\n"]'}, "secrets[0]: expected `str` matching"),
        ({"secret_variables": '["HOOK"]'}, "give either secrets or secret_variables"),
        ({"secrets": None, "secret_variables": '["MISSING"]'}, "secret_variables: MISSING is not set to a secret"),
        ({"secrets": None, "secret_variables": '["HOOK"]'}, "secret_variables: HOOK is not set to a secret"),
        ({"types": '["job.done"]'}, "types[0]: invalid enum value 'job.done'"),
        ({"types": "[]"}, "types: expected `array` of length >= 1"),
        ({"allow_private": '"yes"'}, "allow_private: expected `bool`"),
        ({"tpyes": "[]"}, "unknown field `tpyes`"),
    ],
)
def test_what_is_wrong_is_named_with_its_file_and_endpoint(
    tmp_path: Path, changes: dict[str, str | None], complaint: str
) -> None:
    fields = {name: value for name, value in {**FIELDS, **changes}.items() if value is not None}
    text = "[endpoints.billing]\n" + "".join(f"{name} = {value}\n" for name, value in fields.items())
    with pytest.raises(InvalidEndpoints) as raised:
        load(tmp_path, text, HOOK="whsec_hidden-part")
    message = str(raised.value)
    assert message.startswith(f"LEDGER_WEBHOOKS: {tmp_path / 'hooks.toml'}: endpoint billing: ")
    assert complaint.lower() in message.lower()
    assert "hidden-part" not in message
    assert SECRET not in message
    assert raised.value.__cause__ is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[endpoints", "expected ']'"),
        ("", "missing required field `endpoints`"),
        ("[endpoint.x]", "unknown field `endpoint`"),
        ('[endpoints."Bad Name"]', "matching regex"),
        ("endpoints = 7", "expected `object`, got `int`"),
    ],
)
def test_a_file_that_is_none(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(InvalidEndpoints) as raised:
        load(tmp_path, text)
    assert complaint in str(raised.value).lower()


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidEndpoints, match=r"LEDGER_WEBHOOKS: .*gone.toml: No such file"):
        load_endpoints(tmp_path / "gone.toml", {})
