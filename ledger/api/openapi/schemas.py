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
from ledger.core import commands
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


_METADATA: Final[Schema] = {"type": ["object", "null"], "maxProperties": bodies.METADATA_KEYS_MAX}
_FIGURES: Final[Schema] = {
    "type": "object",
    "properties": {
        **dict.fromkeys(("required_credits", "available_credits", "overdraft_credits"), {"type": "integer"}),
        **dict.fromkeys(("cap_credits", "overage_credits"), {"type": "integer"}),
        **dict.fromkeys(("remaining_credits", "period_credits"), {"type": "integer"}),
        **dict.fromkeys(("credits_charged", "refundable_credits"), {"type": "integer"}),
        **dict.fromkeys(("limit", "open"), {"type": "integer"}),
        "resets_at": {"type": "string", "format": "date-time"},
        "retry_after": {"type": "integer", "minimum": 1},
        "job_id": {"type": "string"},
        "status": {"enum": list(commands.JobStatus.__args__)},  # type: ignore[attr-defined]
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
    "Result.body": {"anyOf": [reference(outcome) for outcome in _OUTCOMES]},
    "ErrorBody.code": {"enum": sorted(STATUS)},
    "ErrorBody.doc_url": {"format": "uri"},
    "ErrorBody.details": _FIGURES,
}


def schemas_of(kinds: Iterable[type]) -> tuple[dict[type, Schema], dict[str, Schema]]:
    """Return the schema of each type, and the components that they refer to."""
    wanted = list(dict.fromkeys([*kinds, *ITEMS, *_OUTCOMES]))
    schemas, components = msgspec.json.schema_components(wanted, ref_template=REFERENCE)
    for name, component in components.items():
        for field, schema in component.get("properties", {}).items():
            _describe(schema, name, field)
    return dict(zip(wanted, schemas, strict=True)), components


def _describe(schema: Schema, name: str, field: str) -> None:
    key = f"{name}.{field}"
    schema.update(_MORE.get(key, {}))
    description = FIELDS.get(key) or FIELDS.get(field)
    if description is not None:
        schema["description"] = description
