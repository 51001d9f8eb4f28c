"""The mixture that `datapipe init` writes. It runs unchanged: its corpus is Python's standard library.

It shows and explains every option. Options that are commented out have their default value.
"""

from __future__ import annotations


def starter_mixture() -> str:
    """A commented mixture file, ready to run."""
    return _STARTER


_STARTER = """\
# A mixture: the corpora, the stages that process them, and the share of each corpus in training.
#
#   datapipe plan THIS_FILE     show what would run
#   datapipe run THIS_FILE      build the snapshot; run it again to resume, or to redo only what changed
#
# A line that is commented out shows an option at its default, or another choice. `datapipe stages` lists all stages.

name: starter                       # name of the snapshot and of the report
seed: 0                             # seed of all random choices
output: runs/starter                # folder of the snapshot: a path (relative to the working directory) or a URL
max_quarantined: 0.1%               # share of a source's documents that may be unreadable before the run fails
# max_unreadable_files: 0           # damaged, cut-off or misnamed files that a source may have before the run fails
validation: 1%                      # share of the kept documents that go to separate validation shards

# licenses: [PSF-2.0, MIT, unknown] # licenses that sources, and documents with a license_field, may have; default: all

sources:
  modules:                          # any name; it becomes a folder of shards
    path: ${python:stdlib}/*.py     # a glob or a list of globs; ${ENV}, ${python:stdlib} and ${python:site-packages} work
    # prefix: https://host/folder   # what the lines of a list, path: "@files.txt", are relative to; default: its folder
    # exclude: ["**/test/**"]       # globs of files to leave out
    format: text                    # one document per file; auto infers the format by the ending: jsonl, parquet, text, ...
    # text: text                    # input field with the text; dots reach into objects: content.text
    # id: id                        # input field with the id; a document without it gets SOURCE/PATH:POSITION
    # keep: [url, date]             # further input fields to keep as columns; {origin: source} keeps source as origin
    # types: {date: timestamp}      # types of kept columns; default: the type that holds the values of all files
    weight: 0.7                     # share of the training tokens, relative to the other sources: 0.7, 70%, 1/3
    # max_epochs: 4                 # largest number of times that training repeats the source; default: no limit
    # strata: {by: score, bounds: [2, 10], repeat: [1, 2, 3], order: shuffled}     # divides the source by a number of each
                                    # document, which is a field in keep or a column of a stage; here: below 2, from 2 to below
                                    # 10, from 10 up. repeat: how often an epoch repeats each part. order: or ascending
    license: PSF-2.0                # by its name in SPDX, or LicenseRef-NAME; recorded in the snapshot, as the next four are
    # license_field: license        # field with the license of each document; those without one have that of the source
    # homepage: https://docs.python.org             # web page about the corpus
    # collected: 2024-05            # when: a date, a month, a year or {from: 2023-11, to: 2024-05}
    # synthetic: false              # whether a model wrote the corpus: true, or {model: NAME, prompt: TEXT}
    # cost: {usd: 1200}             # what the text cost, or {usd_per_million_tokens: 0.2}; the report counts it
    # check_fields: true            # false: only records further on have the fields that stages decide by
    # lone_surrogates: replace       # half a surrogate pair of JSON becomes U+FFFD; quarantine: the document is left out
    # fingerprint: stat             # detect changed files by size and time; content: by reading them
  packages:
    path: ${python:stdlib}/[a-e]*/**/*.py      # ** crosses folders, * stays within one
    format: text
    weight: 0.3
    license: PSF-2.0
    # stages: [dedup.exact]         # stages of this source, instead of the list below
  #  old: {snapshot: runs/2025, weight: 0.1}    # rows of another output as they are, with its tokenizer, so without train:;
                                    # with version: 1f2e3d one of its snapshots, with sources: [web] some of its sources

stages:                             # in order; a name is the path of a module in stages/
  - normalize.unicode
  - dedup.exact
  # - filter.language: {keep: [en], min_score: 0.65}        # options stand in braces, or indented below the name
  # - filter.gopher_quality
  # - filter.gopher_repetition
  # - dedup.minhash
  # - redact.pii: {max_hits: 5}                             # e-mail, IP, phone, card, IBAN, SSN; drops documents with more hits
  # - redact.secrets                                        # keys, tokens and passwords in code
  # - filter.length: {as: second_length}                    # a second use of a stage needs another name
  # - my_company.clean:DropBoilerplate: {min_lines: 3}      # any installed class, or one in the working directory

tokenizer:                          # or `tokenizer: none`: the run ends with the cleaned documents, in documents/
  train:                            # a byte-level BPE tokenizer, trained on the kept documents
    vocab_size: 4096                # number of tokens; default: 32000
    # sample_bytes: 256MiB          # size of the text sample to train on
    # pattern: gpt2                 # splits text into words, and merges stay within a word; cl100k, o200k, llama3 or qwen2
    # eos: <|endoftext|>            # end-of-text token, which ends every document
  # path: tokenizer.json            # an existing tokenizer instead of train; also a tiktoken rank file (cl100k_base.tiktoken)
  # pattern: cl100k                 # for a rank file that is not one of OpenAI's: splits text into words
  # special_tokens: {<|endoftext|>: 100257}     # for such a rank file: the special tokens and their ids
  # bos: <s>                        # with path: the token that begins every document; default: none
  # eos: </s>                       # with path: the end-of-text token; default: inferred from its name

pack:
  sequence_length: 512              # tokens per row; default: 2048; [512, 2048] makes one snapshot per length
  # method: best_fit                # keep documents whole; concat: join and cut anywhere; buckets: cut into powers of two
  # pool_documents: 10000           # documents that best_fit packs at a time; bounds the memory
  # max_padding: 2%                 # best_fit splits documents to fill rows where more would be padding; 100%: never
  # min_piece: 1                    # buckets drops shorter pieces

shards:
  # format: arrow                   # memory-mapped, fastest; parquet: compressed, smaller
  # target_bytes: 256MiB            # size at which a shard is complete

documents:                          # only with tokenizer: none
  # format: parquet                 # columns, zstd; jsonl.zst: one JSON object a line
  # target_bytes: 256MiB            # bytes of text at which a file is complete

mixture:
  # tokens: 100B                    # tokens to train on; default: the loader never stops
  # phases:                         # weights that change during training, needs tokens; default: the weights of the sources
  #   - {until: 80%, weights: {modules: 0.8, packages: 0.2}}
  #   - {until: 100%, weights: {modules: 0.4, packages: 0.6}, schedule: linear}     # linear: a straight line from
                                    # the weights before, in 64 equal steps; step: constant weights
  # weighting: given                # or by token counts: unimax, or temperature with temperature: 2.0 (tokens^(1/2))
  # max_epochs: 4                   # for every source without its own max_epochs; default: no limit
  # exhausted: stop                 # when a source reaches its max_epochs: stop, refuse to run, or redistribute
  # max_synthetic: 30%              # largest share of the tokens drawn from synthetic sources; default: no limit
  #  replay: {from: runs/2025, share: 5%}      # earlier training data again, as it was drawn; its tokenizer, so without train:
  # window: 8                       # shards of a source that the loader shuffles together; 0: all

# takedown: requests.txt            # documents that must go, one a line: SOURCE/PATH:POSITION or a key

publish:                            # for `datapipe run --follow SECONDS`: when new files become a snapshot; default: at once
  # min_tokens: 1B                  # new tokens that are enough, estimated from the bytes of the files
  # or_every: 6h                    # time since the last snapshot after which less is enough

execution:                          # how the work is cut into tasks; it does not change the documents that are kept
  # split_bytes: 32MiB              # bytes of input text per task
  # bucket_bytes: 256MiB            # bytes of exchanged rows per task; it takes up to twice as much, and 256 MiB
  # max_retries: 3                  # retries of a task that raises
  # max_infrastructure_retries: 20  # retries after lost workers, full memory, or failures of disks and networks
  # on_crash: fail                  # stop at a document that crashes a stage; quarantine: go on without it
  # stall_s: 600                    # seconds without any sign of work after which a worker is ended and its task tried again
  # check_disk: true                # refuse a run that the disk cannot hold by the estimate of `datapipe plan`
  # cost_per_core_hour: 0.03        # price of a core for an hour, in US dollars; the report then has what the run cost
  # cost_per_node_hour: 2.5         # the same of a node of a Ray cluster, for as long as the run uses it
  # resources:                      # resources of tasks on Ray, by stage, or for tokenize, pack, tokenizer/train and write
  #   dedup.exact: {num_cpus: 2, num_gpus: 0, memory: 4GiB}    # CPU cores, GPUs (fractions share a GPU), memory
"""
