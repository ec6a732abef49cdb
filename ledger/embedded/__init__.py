"""PostgreSQL that the service brings along and looks after, for when no database URL is given.

`place` decides where its files are and which system user runs it, `programs` finds the server's programs,
`server` starts, watches and stops it.
"""

from ledger.embedded.place import SYSTEM_DIR, EmbeddedPostgresError, default_data_dir, prepare_data_dir
from ledger.embedded.server import ConnectionUrls, EmbeddedPostgres

__all__ = [
    "SYSTEM_DIR",
    "ConnectionUrls",
    "EmbeddedPostgres",
    "EmbeddedPostgresError",
    "default_data_dir",
    "prepare_data_dir",
]
