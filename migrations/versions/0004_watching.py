"""What watching the ledger reads every few seconds: found along an index, however long the history is.

Neither index costs the hot tables their in-place updates: what they are made of stays as it is while credits move.
"""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"

INDEXES = (
    """
    create index accounts_unclosed_idx on ledger.accounts (closed_through, created_at) where account_id is not null
    """,
    """
    create index periods_overage_idx on ledger.periods (period) where overage_price is not null
    """,
)


def upgrade() -> None:
    for statement in INDEXES:
        op.execute(statement)


def downgrade() -> None:
    op.execute("drop index ledger.periods_overage_idx")
    op.execute("drop index ledger.accounts_unclosed_idx")
