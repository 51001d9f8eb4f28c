"""Plain Python for `datapipe/kernels/text/json_strings.py`: the standard library's JSON encoder."""

from __future__ import annotations

import json


def quoted(text: bytes) -> bytes:
    """The bytes as a JSON string. Bytes that are no UTF-8 stay as they are."""
    return json.dumps(text.decode(errors="surrogateescape"), ensure_ascii=False).encode(errors="surrogateescape")
