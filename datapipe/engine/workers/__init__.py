"""Worker processes: the worker's own side, its supervisor's side, and what supervisors on other machines tell the driver."""
