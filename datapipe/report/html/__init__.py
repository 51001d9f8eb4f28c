"""report.html: one page, drawn from report.json; it needs no network and no script."""
