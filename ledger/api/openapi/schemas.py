"""The schemas: what msgspec makes of the structs that bodies are read into and written from, described field by field.

What structs cannot say is added here: the shape of any JSON (`metadata`, `result`), the commands of a batch and what
they may come to. A field is described under its own name, or under `Struct.field` where the name has several meanings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import GenericAlias
from typing import Any, Final

import msgspec
from msgspec import NODEFAULT, Raw, Struct

from ledger.api import bodies, jobs
from ledger.api.errors import STATUS, ErrorAnswer
from ledger.api.openapi.fields import FIELDS
from ledger.api.parameters import STATUSES
from ledger.core.commands import CycleDone, GrantDone, RefundDone, Released, Reservation, Settled
from ledger.queries.jobs import JobView
from ledger.queries.journal import EntryView
from ledger.queries.records import UsageRecordView

Schema = dict[str, Any]

REFERENCE: Final = "#/components/schemas/{name}"


# -- structs for what has none of its own --------------------------------------------------------------------------


def _page(name: str, item: type[Struct], what: str) -> type[Struct]:
    """Return the struct of a list's page under a name of its own, which `Page[T]` has not."""
    fields = [("data", GenericAlias(list, (item,))), ("next_cursor", str | None)]
    return msgspec.defstruct(name, fields, namespace={"__doc__": f"One page of {what}."}, kw_only=True)


def _without_raw_default(kind: type[Struct]) -> type[Struct]:
    """Return a struct without the default of its `Raw` field, since msgspec writes no schema for one."""
    fields: list[Any] = []
    for field in msgspec.structs.fields(kind):
        default = None if isinstance(field.default, Raw) else field.default
        fields.append((field.name, field.type) if default is NODEFAULT else (field.name, field.type, default))
    config = kind.__struct_config__
    return msgspec.defstruct(
        kind.__name__,
        fields,
        namespace={"__doc__": kind.__doc__},
        module=kind.__module__,
        forbid_unknown_fields=config.forbid_unknown_fields,
        tag_field=config.tag_field,
        tag=config.tag,
        kw_only=True,
    )


ReserveBody: Final = _without_raw_default(bodies.ReserveBody)
SettleBody: Final = _without_raw_default(bodies.SettleBody)
BatchAnswer: Final = msgspec.defstruct(
    "BatchAnswer",
    [("results", list[jobs.Result])],
    namespace={"__doc__": "What each command of a batch came to, in the order in which they were sent."},
)
JobPage: Final = _page("JobPage", JobView, "jobs, newest first")
RecordPage: Final = _page("UsageRecordPage", UsageRecordView, "usage records, newest first")
EntryPage: Final = _page("EntryPage", EntryView, "the journal, oldest first")
GrantPage: Final = _page("GrantPage", GrantDone, "grants, in the order granted")
CyclePage: Final = _page("CyclePage", CycleDone, "billing cycles, in the order of their months")

ITEMS: Final = (
    _without_raw_default(jobs.ReserveItem),
    _without_raw_default(jobs.SettleItem),
    jobs.ReleaseItem,
    jobs.RefundItem,
)
"""The commands of a batch."""

_OUTCOMES: Final = (Reservation, JobView, Settled, Released, RefundDone, ErrorAnswer)
"""What a command of a batch may come to."""


# -- what structs cannot say ---------------------------------------------------------------------------------------


def reference(kind: type) -> Schema:
    """Return a reference to the schema of a struct."""
    return {"$ref": REFERENCE.format(name=kind.__name__)}


_INSTANTS: Final = ("at", "now", "created", "effective_from")
"""Fields that are instants and do not end in `_at`. Every instant is in UTC, with `Z`."""

_METADATA: Final[Schema] = {"type": ["object", "null"], "maxProperties": bodies.METADATA_KEYS_MAX}
_FIGURES: Final = (
    "required_credits",
    "available_credits",
    "overdraft_credits",
    "cap_credits",
    "overage_credits",
    "remaining_credits",
    "period_credits",
    "credits_charged",
    "refundable_credits",
    "limit",
    "open",
    "retry_after",
)
"""The whole numbers among the details of errors."""

_DETAILS: Final[Schema] = {
    "type": "object",
    "properties": {
        **{name: {"type": ["integer", "null"] if name == "cap_credits" else "integer"} for name in _FIGURES},
        "resets_at": {"type": "string", "format": "date-time"},
        "job_id": {"type": "string"},
        "status": {"enum": [*STATUSES]},
        "operation": {"type": "string"},
    },
}
_MORE: Final[Mapping[str, Schema]] = {
    "ReserveBody.metadata": _METADATA,
    "ReserveItem.metadata": _METADATA,
    "JobView.metadata": {"type": ["object", "null"]},
    "BatchBody.commands": {
        "items": {
            "anyOf": [reference(item) for item in ITEMS],
            "discriminator": {
                "propertyName": "command",
                "mapping": {str(item.__struct_config__.tag): reference(item)["$ref"] for item in ITEMS},
            },
        }
    },
    "EventView.data": {"type": "object"},
    "ErrorBody.code": {"enum": sorted(STATUS)},
    "ErrorBody.doc_url": {"format": "uri"},
    "ErrorBody.details": _DETAILS,
}


def schemas_of(kinds: Iterable[type]) -> tuple[dict[type, Schema], dict[str, Schema]]:
    """Return the schema of each type, and the components that they refer to."""
    wanted = list(dict.fromkeys([*kinds, *ITEMS, *_OUTCOMES]))
    schemas, components = msgspec.json.schema_components(wanted, schema_hook=_outcome, ref_template=REFERENCE)
    for name, component in components.items():
        if name in FIELDS:
            component["description"] = FIELDS[name]
        for field, schema in component.get("properties", {}).items():
            _complete(schema, name, field)
    return dict(zip(wanted, schemas, strict=True)), components


def _outcome(kind: type) -> Schema:
    """Return the schema of `object`: the one body that is declared so is what a command of a batch came to."""
    assert kind is object
    return {"anyOf": [reference(outcome) for outcome in _OUTCOMES]}


def _complete(schema: Schema, name: str, field: str) -> None:
    """Say of a field what its type in Python does not."""
    key = f"{name}.{field}"
    if field.endswith("_at") or field in _INSTANTS:
        _one_of(schema, "string")["format"] = "date-time"
    if {"integer", "number"} <= {option.get("type") for option in schema.get("anyOf", ())}:
        _one_number(schema, "number" if field.endswith("quantity") else "integer")
    if key in _MORE:
        schema.pop("anyOf", None)
        schema.update(_MORE[key])
    if description := FIELDS.get(key) or FIELDS.get(field):
        schema["description"] = description


def _one_of(schema: Schema, kind: str) -> Schema:
    """Return the option of a schema that is of a type: itself, where it has no others."""
    options: list[Schema] = schema.get("anyOf", [schema])
    return next(option for option in options if option.get("type") == kind)


def _one_number(schema: Schema, kind: str) -> None:
    """Keep one of the two ways to write a number: JSON Schema takes `2.0` for an integer, as we do."""
    others = [option for option in schema["anyOf"] if option.get("type") not in ("integer", "number")]
    kept = _one_of(schema, kind)
    if others:
        schema["anyOf"] = [kept, *others]
    else:
        del schema["anyOf"]
        schema.update(kept)
