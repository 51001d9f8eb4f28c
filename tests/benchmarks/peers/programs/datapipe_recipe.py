"""Ours: `datapipe run`, with the stages of mixtures/fineweb.yaml that need no model and no other document.

python PROGRAM TEXTS TOKENIZER OUTPUT     TEXTS: a folder of JSON lines
"""

import json
import os
import subprocess
import sys
from pathlib import Path

COMMAND = [sys.executable, "-c", "from datapipe.cli.main import main; main()", "run", "--workers", "1"]


def main(texts: str, tokenizer: str, output: str) -> None:
    mixture = {
        "name": "peers",
        "output": output,
        "sources": {"web": {"path": f"{texts}/*.jsonl"}},
        "stages": [
            {"filter.gopher_repetition": {"profile": "datatrove"}},
            {"filter.gopher_quality": {"profile": "datatrove"}},
            {"filter.c4_quality": {"profile": "fineweb"}},
            {"filter.fineweb_quality": {"profile": "datatrove"}},
            {"redact.pii": {"kinds": ["email", "ip"]}},
        ],
        "tokenizer": {"path": tokenizer},
        "pack": {"sequence_length": 2048},
    }
    file = Path(f"{output}.yaml")
    file.write_text(json.dumps(mixture), encoding="utf-8")  # JSON is YAML
    subprocess.run([*COMMAND, str(file)], check=True, stdout=subprocess.DEVNULL)
    report = json.loads(Path(output, "report.json").read_text(encoding="utf-8"))
    print(json.dumps({"cpu_s": sum(os.times()[:4]), "kept": report["sources"]["web"]["documents"]["kept"]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
