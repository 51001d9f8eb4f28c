"""datatrove: the filters of its examples/fineweb.py, PII, and tokens merged and shuffled as in its examples/tokenize_c4.py.

python PROGRAM TEXTS TOKENIZER OUTPUT     TEXTS: a folder of JSON lines
"""

# pyright: reportMissingImports=false

import json
import os
import sys
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.filters import C4QualityFilter, FineWebQualityFilter, GopherQualityFilter, GopherRepetitionFilter
from datatrove.pipeline.formatters import PIIFormatter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer, DocumentTokenizerMerger


def main(texts: str, tokenizer: str, output: str) -> None:
    filters = [
        GopherRepetitionFilter(),
        GopherQualityFilter(),
        C4QualityFilter(filter_no_terminal_punct=False),
        FineWebQualityFilter(),
    ]
    tokens = DocumentTokenizer(f"{output}/tokens", tokenizer, eos_token="<|endoftext|>", seed=1)
    merger = DocumentTokenizerMerger(f"{output}/tokens", f"{output}/merged", "web", seed=1, progress=False)
    for name, pipeline in {"tokens": [JsonlReader(texts), *filters, PIIFormatter(), tokens], "merged": [merger]}.items():
        LocalPipelineExecutor(pipeline, tasks=1, workers=1, logging_dir=f"{output}/logs/{name}").run()
    ends = Path(output, "merged").glob("*.index")
    print(json.dumps({"cpu_s": sum(os.times()[:4]), "kept": sum(path.stat().st_size for path in ends) // 8}))


if __name__ == "__main__":
    main(*sys.argv[1:])
