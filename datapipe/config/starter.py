"""The mixture that `datapipe init` writes: it runs as it is, on the standard library of the Python it runs under.

Every option of the file is in it, with what it means; those that are commented out stand at their default.
"""

from __future__ import annotations


def starter_mixture() -> str:
    """A commented mixture file, ready to run."""
    return _STARTER


_STARTER = """\
# A mixture: which corpora, what is done to them, and how much of each a training run sees.
#
#   datapipe plan THIS_FILE     what would run
#   datapipe run THIS_FILE      build the snapshot; the same command again resumes, and redoes only what changed
#
# Lines that are commented out show an option at its default, or another choice. `datapipe stages` lists all stages.

name: starter                       # what the snapshot and the report are called
seed: 0                             # every random choice follows from it
output: runs/starter                # a local folder (relative: from the working directory) or a URL: s3://bucket/folder
max_quarantined: 0.1%               # of a source's documents may be unreadable; past it the run fails
validation: 1%                      # of the kept documents go into shards of their own

sources:
  modules:                          # any name: it becomes a folder of shards
    path: ${python:stdlib}/*.py     # a glob or a list of them; ${ENV}, ${python:stdlib}, ${python:site-packages} are filled in
    # exclude: ["**/test/**"]       # globs of files to leave out
    format: text                    # one document per file here; auto tells by the endings: jsonl, parquet, text, ...
    # text: text                    # input field with the text; dots reach into objects: content.text
    # id: id                        # input field with the id; where it is missing, path:place is
    # keep: [url, date]             # other input fields to carry along
    weight: 0.7                     # share of the training tokens, relative to the others: 0.7, 70%, 1/3
    # max_epochs: 4                 # how often it may be repeated at most; default: no limit
    # strata: {by: score, bounds: [2, 10], repeat: [1, 2, 3], order: shuffled}     # parts of the source in shards of their own,
                                    # by a number of each document (one of keep, or added by a stage): below 2, to below 10,
                                    # the rest; how often each comes up in an epoch; mixed, or ascending
    license: PSF-2.0                # noted in the snapshot
    # synthetic: false              # whether a model wrote it; noted in the snapshot
    # fingerprint: stat             # a changed file is noticed by size and time; content: by reading it
  packages:
    path: ${python:stdlib}/[a-e]*/**/*.py      # ** crosses folders, * stays within one
    format: text
    weight: 0.3
    license: PSF-2.0
    # stages: [dedup.exact]         # a source may have stages of its own instead of the list below

stages:                             # in order; the name is the path of the module in stages/
  - normalize.unicode
  - dedup.exact
  # - filter.language: {keep: [en], min_score: 0.65}        # options are indented under the name, or in braces
  # - filter.gopher_quality
  # - filter.gopher_repetition
  # - dedup.minhash
  # - redact.pii: {max_hits: 5}                             # e-mail, IP, phone, card, IBAN, SSN; more hits drop the document
  # - redact.secrets                                        # keys, tokens and passwords in code
  # - filter.length: {as: second_length}                    # a stage used twice needs a name of its own
  # - my_company.clean:DropBoilerplate: {min_lines: 3}      # any installed class, or one in the working directory

tokenizer:
  train:                            # a byte-level BPE tokenizer, trained on the kept documents
    vocab_size: 4096                # default: 32000
    # sample_bytes: 256MiB          # text it is trained on
    # pattern: gpt2                 # how text is cut into words that merges stay within; cl100k, o200k, llama3 or qwen2
    # eos: <|endoftext|>            # closes every document
  # path: tokenizer.json            # or one that exists, instead of train; also ranks of tiktoken (cl100k_base.tiktoken)
  # pattern: cl100k                 # with ranks that are not OpenAI's own: how text is cut into words
  # special_tokens: {<|endoftext|>: 100257}     # with such ranks: the special tokens and their ids
  # eos: </s>                       # with path: its end-of-text token, where it cannot be inferred

pack:
  sequence_length: 512              # tokens per row; default: 2048; [512, 2048] makes a snapshot of each
  # method: best_fit                # whole documents where they fit best; concat: end to end; buckets: cut into powers of two
  # pool_documents: 10000           # documents packed together by best_fit; bounds its memory
  # min_piece: 1                    # with buckets, shorter pieces are dropped

shards:
  # format: arrow                   # memory-mapped, fastest; parquet: smaller, compressed
  # target_bytes: 256MiB            # size at which a shard is closed

mixture:
  # tokens: 100B                    # the loader stops there; without it, it never does
  # phases:                         # weights that change on the way; default: the sources' own throughout; needs tokens
  #   - {until: 80%, weights: {modules: 0.8, packages: 0.2}}
  #   - {until: 100%, weights: {modules: 0.4, packages: 0.6}, schedule: linear, stairs: 64}     # in a straight line from the
                                    # weights before, made of 64 equal steps; schedule: step has these throughout
  # weighting: given                # or by how much there is: unimax; or temperature, with temperature: 2.0 (tokens^(1/2))
  # max_epochs: 4                   # of every source that does not say so itself; default: no limit
  # exhausted: stop                 # where a source would pass its max_epochs; or refuse to begin, or redistribute
  # window: 8                       # shards of a source that are mixed at a time; 0: all

execution:                          # how the work is cut; the documents that are kept do not depend on it
  # split_bytes: 32MiB              # input text per task
  # bucket_bytes: 256MiB            # rows exchanged per task; it holds them in memory
  # max_retries: 3                  # of a task that raises
  # max_infrastructure_retries: 20  # after lost workers, full memory, failing disks or networks
  # resources:                      # what tasks ask of Ray, by stage, or by step: tokenize, pack, tokenizer/train
  #   dedup.exact: {num_cpus: 2, num_gpus: 0, memory: 4GiB}    # cores, GPUs (or a part of one), memory set aside
"""
