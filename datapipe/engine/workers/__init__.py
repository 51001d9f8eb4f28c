"""Worker processes, their supervisors, and the reports of supervisors on other machines."""
