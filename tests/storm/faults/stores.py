"""S3 that fails: a proxy before a store on loopback, with input and output there.

    datapipe ─▶ StormyStore: one request in some dozen fails ─▶ moto

5xx, resets, answers that are lost after the store did what it was asked, answers that stall, end early or come slowly, expired
credentials, and 404 for what is there. On GET, HEAD, PUT, POST and DELETE alike.
"""

import logging
import random
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from datapipe.storage.root import Root
from tests.storm import checks
from tests.storm.rounds import Round, Storm, faults
from tests.support import dedup_runs, runs
from tests.support.object_store import copy_files, object_store, upload
from tests.support.unreliable_store import Fault, UnreliableStore

BUCKET = "storm"
_IMPATIENT = "&connect_timeout=2&request_timeout=2"
_HARMLESS = (*("status", "reset", "lost", "cut", "slow") * 3, "stall")
_WORDS = ("no answer", "s3://", "no such file", "does not exist")


class StormyStore(UnreliableStore):
    """Fails at random, but reproducibly for the same order of requests."""

    def __init__(self, upstream: str, seed: int) -> None:
        super().__init__(upstream)
        self.every, self.kinds, self.code = 0, _HARMLESS, ""
        self.failed: list[str] = []
        self._rng, self._choice = random.Random(seed), threading.Lock()

    def fault_of(self, method: str, path: str, authorization: str | None) -> Fault | None:
        with self._choice:
            if not self.every or self._rng.random() * self.every >= 1:
                return None
            kind = self._rng.choice(self.kinds)
            if method == "HEAD" and kind not in ("status", "lost"):
                kind = "status"
            fault = Fault(
                kind=kind,
                path=path,
                after=self._rng.randrange(200),
                status={"ExpiredToken": 400, "NoSuchKey": 404}.get(self.code) or self._rng.choice((500, 502, 503, 504)),
                left=1,
                method=method,
                code=self.code if kind == "status" else "",
            )
            name = urlsplit(path).path.removeprefix(f"/{BUCKET}/") or "the bucket"
            self.failed.append(f"{self.code or kind} on {method} {name}")
            return fault


@faults("store", aim=200)
def fail_store(round: Round) -> None:
    """Runs of which some requests fail, then one without."""
    store: Store = round.storm.once("store", lambda: Store(round.storm))
    proxy = StormyStore(store.upstream, round.rng.randrange(1 << 30))
    folder = f"{BUCKET}/out-{round.number}"
    try:
        mixture = store.write_mixture(round.folder, proxy)
        for name in ("harmless", "harmless", round.rng.choice(("expired", "missing"))):
            _fail(round, proxy, mixture, f"s3://{folder}{proxy.query}{_IMPATIENT}", name)
        proxy.every = 0
        output = f"s3://{folder}{proxy.query}{_IMPATIENT}"
        round.ended_well(round.run("--output", output, mixture=mixture))
        copy = store.fetched(folder, round.folder / "copy")
        checks.check_output(copy, store.expected)
        round.same()
    finally:
        proxy.close()


def _fail(round: Round, proxy: StormyStore, mixture: Path, output: str, name: str) -> None:
    proxy.failed.clear()
    proxy.kinds, proxy.code = {
        "harmless": (_HARMLESS, ""),
        "expired": (("status",), "ExpiredToken"),
        "missing": (("status",), "NoSuchKey"),
    }[name]
    proxy.every = round.rng.choice((12, 25, 50)) if name == "harmless" else 40
    ended = round.ended(round.run("--output", output, mixture=mixture))
    proxy.every = 0
    for kind, count in Counter(proxy.failed).items():
        round.fault(kind, count)
    expired = ("expired", "ExpiredToken")
    round.judge(round.refusal(ended, expired if name == "expired" else _WORDS))  # bytes are compared once all is done


class Store:
    """A store with the corpus, and what an undisturbed run makes there."""

    def __init__(self, storm: Storm) -> None:
        stack = ExitStack()
        storm.closing.append(stack.close)
        logging.getLogger("werkzeug").setLevel(logging.CRITICAL)  # a line for each request
        self.query = stack.enter_context(object_store(BUCKET))
        self.upstream = urlsplit(dict(parse_qsl(self.query.removeprefix("?")))["endpoint_override"]).netloc
        local = dedup_runs.write_corpus(storm.folder / "stored", checks.NUM_PAGES)
        upload(local, f"s3://{BUCKET}/corpus{self.query}")
        round = Round(storm, "undisturbed-store", 0)
        folder = f"{BUCKET}/undisturbed"
        mixture = self.write_mixture(round.folder, None)
        round.ended_well(round.run("--output", f"s3://{folder}{self.query}", mixture=mixture))
        copy = self.fetched(folder, round.folder / "copy")
        self.expected = checks.digests(copy)
        checks.check_output(copy, self.expected)

    def write_mixture(self, folder: Path, proxy: UnreliableStore | None) -> Path:
        """The mixture of the storm over the stored corpus."""
        query = self.query if proxy is None else f"{proxy.query}{_IMPATIENT}"
        sources = "".join(
            f"  {source}: {{path: [{', '.join(f's3://{BUCKET}/corpus/{source}/{name}.jsonl{query}' for name in names)}]}}\n"
            for source, names in dedup_runs.FILES.items()
        )
        return runs.write_mixture(folder, sources, dedup_runs.IN_ROUNDS, dedup_runs.TAIL)

    def fetched(self, folder: str, target: Path) -> Path:
        """A local copy of an output."""
        copy_files(Root(f"s3://{folder}{self.query}"), Root(str(target)))
        return target
