"""What the business knows: pure decisions on the state of one account. Depends on pricing and nothing else."""
