"""report.html: one file to look at, drawn from report.json; it needs no network and no script."""
