"""The names of everything in OUTPUT.

snapshot.json                     the newest snapshot
snapshots/FINGERPRINT/            every snapshot: its manifest, tokenizer, file table, mixture and report
shards/SOURCE/part-….arrow        the shards of all of them; shards/SOURCE+2/part-….arrow of files that were added second
lists/DIGEST.parquet              the shards that manifests name: path, source, counts and checksum of each
tokenizer.json   files.parquet    of the newest: its tokenizer, and the input file behind each document key
chat_template.jinja               of the newest: the template of its conversations, where there are any
removed.parquet                   of the newest: documents that were taken down, where there are any
length-N/shards/SOURCE/           those of a further sequence length
mixture.yaml                      the mixture of the last run with all defaults, without credentials
report.json                       the numbers of the last run
README.md   croissant.json        the card of the newest snapshot: for people and the hub, and for programs
work/                             what runs need to resume, and `inspect` to show documents
  ledger/NUMBER-ID.jsonl          the records of committed tasks, many in a file
  attempts/STEP/TASK-ATTEMPT/     files of tasks; those that no record names are deleted when a run starts and ends
  index.json   index/   rows/     rows of the run's global stages, for later runs; rows/ has files that have lost documents
  run.json   inputs.parquet       the last run and its inputs
  begun                           of a run that is active or was killed: run.json is then of the run before
  cluster.json                    hours that nodes of a Ray cluster were used for
  published/FINGERPRINT           the steps that each snapshot was made of, with their tasks
  generation.json                 the files that a run adds to the newest snapshot
  following/                      the lock of the process that follows, and follow.json: what it is at, for `datapipe status`
  publish/                        shards on their way to shards/
  files/DIGEST/NAME               files that options of stages name, for the nodes of a Ray cluster
  lock   lock.json                held by the active run: locally, on an object store
  deleting-ID.json                what a run on an object store is deleting
  status.json                     how far the run is, for `datapipe status`
  failure.txt                     the traceback of the task that failed the last run
"""

SNAPSHOT = "snapshot.json"
SNAPSHOTS = "snapshots"
LISTS = "lists"
TOKENIZER = "tokenizer.json"
CHAT_TEMPLATE = "chat_template.jinja"
FILES = "files.parquet"
REMOVED = "removed.parquet"
MIXTURE = "mixture.yaml"
REPORT = "report.json"
REPORT_PAGE = "report.html"
CARD = "README.md"
CROISSANT = "croissant.json"

OWN_FILES = (SNAPSHOT, TOKENIZER, CHAT_TEMPLATE, FILES, REMOVED, MIXTURE, REPORT, REPORT_PAGE, CARD, CROISSANT)
"""The files of the output itself, which runs replace."""

WORK = "work"
LEDGER = f"{WORK}/ledger"
ATTEMPTS = f"{WORK}/attempts"
RUN = f"{WORK}/run.json"
INPUTS = f"{WORK}/inputs.parquet"
BEGUN = f"{WORK}/begun"
GENERATION = f"{WORK}/generation.json"
FOLLOWING = f"{WORK}/following"
FOLLOWER = f"{FOLLOWING}/follow.json"
CLUSTER = f"{WORK}/cluster.json"
PUBLISH = f"{WORK}/publish"
PUBLISHED = f"{WORK}/published"
INDEX = f"{WORK}/index"
OPTION_FILES = f"{WORK}/files"
STATUS = f"{WORK}/status.json"
FAILURE = f"{WORK}/failure.txt"


def published_tasks(fingerprint: str) -> str:
    """The file that lists the steps of a snapshot; see `snapshots/committed_steps.py`."""
    return f"{PUBLISHED}/{fingerprint}"
