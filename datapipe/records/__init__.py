"""Outputs of tasks, commit files and the ledger; names in OUTPUT, checksums, digests of code."""
