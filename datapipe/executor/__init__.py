"""Running a plan: the one function every worker runs, two engines to run it on, and the ledger that makes it durable."""
