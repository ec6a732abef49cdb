"""${message}

Revision ID: ${up_revision}
Revises: ${down_revision | comma,n}

`env.py` has set lock_timeout (5 s) and statement_timeout (10 min) for the connection. A migration that needs others
says so here, and why: op.execute("set local statement_timeout = '…'").
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    ${downgrades if downgrades else "pass"}
