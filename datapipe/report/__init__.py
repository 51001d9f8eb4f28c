"""What a run did, for programs (report.json) and for people: progress, the funnel, documents to look at."""
