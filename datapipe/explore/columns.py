"""The views of `datapipe sql` and their columns, as a user reads about them."""

VIEWS: tuple[tuple[str, str, str], ...] = (
    ("documents", "source, path, position, name", "Where the document is in its input. `name` is SOURCE/PATH:POSITION."),
    ("documents", "key", "32 hex digits, for joins and for `inspect --document`."),
    ("documents", "id, url", "Of the input. `url` is the kept column `url`, `uri` or `link`."),
    ("documents", "fate", "kept, dropped or quarantined."),
    (
        "documents",
        "stage, rule, value, threshold",
        "What dropped the document, what it measured, and its limit; NULL for kept documents.",
    ),
    ("documents", "survivor", "Key of the document in whose favour a stage dropped this one."),
    ("documents", "bytes", "Of the text, of kept documents."),
    ("documents", "error", "Why a document is quarantined."),
    (
        "documents",
        "NAME",
        "Every column of kept documents that the source keeps or a stage writes: `language`, or `STAGE.RULE` with `mode: tag`. "
        "Texts have up to 1,000 characters. SQL ignores case: a column whose name equals another one but for case is "
        "`kept.NAME`. So are `excerpt`, `shard`, `row`, `tokens`, `place`, `filename` and `file_row_number`.",
    ),
    (
        "clusters",
        "stage, rule, survivor, dropped, least, greatest",
        "For each survivor: the number of documents that a stage dropped for it, and their least and greatest similarity.",
    ),
    (
        "borderlines",
        "source, stage, rule, is_dropped, key, value, threshold, distance",
        "Documents nearest to thresholds, 50 of each side and task.",
    ),
    (
        "findings",
        "source, id, stage, outcome, list, entry, key, start, stop, value",
        "Items of evaluation sets in documents.",
    ),
    (
        "packed",
        "source, split, key, shard, row, start, tokens, sequence_length, cell",
        "The rows of shards that hold the document: its tokens from `start` on. An output with several sequence lengths has "
        "the tokens of a document once for each length, so select one: `where sequence_length = 2048`. "
        "`cell` is NULL for held-out rows, and where the source is not split.",
    ),
)
"""View, columns, meaning. `tests/datapipe/explore/test_database.py` compares the names with the views."""
