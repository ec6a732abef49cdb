"""What a sweep did when it last came to its end: it outlives runs that are under way, were cut off or failed.

What the last audit found so stays known until another has looked at everything.
"""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.execute("alter table ledger.sweeps add column succeeded_counts json")
    op.execute("comment on column ledger.sweeps.succeeded_counts is 'what the run did that succeeded last'")
    op.execute("update ledger.sweeps set succeeded_counts = counts where finished_at = succeeded_at")


def downgrade() -> None:
    found = "select exists (select from ledger.sweeps where succeeded_counts is not null)"
    if op.get_bind().exec_driver_sql(found).scalar():
        raise NotImplementedError("it would lose what the last audit found")
    op.execute("alter table ledger.sweeps drop column succeeded_counts")
