"""What is durable of tasks: their outputs, the commit files and the ledger; names in OUTPUT,
checksums, digests of code."""
