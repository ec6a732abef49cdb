"""Exports: a month of usage, records, entries or statements as a file, in constant memory.

- `columns`: what an export is made of
- `contents`: what each export has for columns, and how its rows are read, account by account
- `focus`: the usage export, in the columns of the FinOps Open Cost & Usage Specification
- `writers`: CSV and Parquet
- `exporting`: an export from one snapshot
- `command`: `gateway-ledger export`
"""

from ledger.export.contents import CONTENTS
from ledger.export.exporting import AccountUnknown, Export, export
from ledger.export.writers import FORMATS, ParquetMissing, Writer, writer_of

__all__ = ["CONTENTS", "FORMATS", "AccountUnknown", "Export", "ParquetMissing", "Writer", "export", "writer_of"]
