"""Gateway Ledger: the credit ledger and meter behind an AI API gateway."""
