"""Reports of a run: report.json for programs; progress, tables and documents for people."""
