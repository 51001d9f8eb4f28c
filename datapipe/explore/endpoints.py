"""The endpoints below `api/`: from options in a URL to JSON. `README.md` of this package lists them.

Errors of the user's request and of the output are answered with one sentence. An unexpected error is, too, without its message,
which may quote a document; its traceback is printed where the server runs, without the message.
"""

import re
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping
from http import HTTPStatus
from time import perf_counter
from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from datapipe.credentials import masked
from datapipe.dataclass import asdict
from datapipe.errors import DatapipeError, UserError
from datapipe.explore.borderline import sides, swept
from datapipe.explore.clusters import ClusterQuery, listed_clusters, shown_cluster
from datapipe.explore.database import Limits
from datapipe.explore.document.view import DocumentView
from datapipe.explore.documents import FATES, Inspector
from datapipe.explore.redaction import Redactor
from datapipe.explore.rows import Query, Rows
from datapipe.explore.search import SearchQuery, search_lines
from datapipe.explore.server import Answer, PageServer, Request, RequestError
from datapipe.explore.sweep import rule_of
from datapipe.loader.trace import open_run
from datapipe.stage.global_stage import Global

M = TypeVar("M", bound=BaseModel)

MOST_FOUND = 200
MOST_STEPS = 1_000


class Numbers(BaseModel, frozen=True):
    members: int = Field(default=3, ge=1)
    global_batch_size: int = Field(default=0, ge=0, lt=1 << 53)


class Api:
    def __init__(self, output: Inspector) -> None:
        self.output = output
        self.rows = Rows(output, Redactor(output))
        self.view = DocumentView(self.rows)

    def __call__(self, request: Request) -> Answer:
        """The answer to a request. Raises RequestError, and nothing else."""
        try:
            return self._answer(request)
        except Exception as error:
            raise refusal(error) from None

    def _answer(self, request: Request) -> Answer:
        options, output, view = request.query, self.output, self.view
        match request.path:
            case ("output",):
                return self._output()
            case ("documents",):
                started, query = perf_counter(), parsed(Query, options)
                total, rows = self.rows.listed(query)
                took_ms = round((perf_counter() - started) * 1e3, 1)
                if query.lines:
                    view.add_excerpts(rows)
                return {"total": total, "offset": query.offset, "ms": took_ms, "documents": rows}
            case ("lookup",):
                text = options.get("q", "").strip()
                if not text:
                    raise UserError("Give q: a key, a name such as SOURCE/PATH:POSITION, an id or a URL.")
                rows = self.rows.named(text, MOST_FOUND)
                view.add_excerpts(rows)
                return {"documents": rows}
            case ("search",):
                query = parsed(SearchQuery, options)
                return _with_errors(search_lines(self.rows, query, output.select_sources(query.source)))
            case ("document", digits):
                return view.view(key_of(digits))
            case ("document", digits, "steps"):
                return steps_of(output, key_of(digits), request)
            case ("borderline" | "sweep" as kind,):
                rule = rule_of(output, *(options.get(name, "") for name in ("stage", "rule", "source")))
                return sides(view, rule) if kind == "borderline" else swept(output, rule)
            case ("clusters",):
                return listed_clusters(view, parsed(ClusterQuery, options))
            case ("cluster", digits):
                return shown_cluster(view, key_of(digits), options.get("stage", ""), parsed(Numbers, options).members)
        raise RequestError(HTTPStatus.NOT_FOUND, "There is no such endpoint.")

    def _output(self) -> Answer:
        output, reasons = self.output, self.rows.reasons
        return {
            "name": None if output.report is None else output.report.name,
            "sources": [self._source(source) for source in output.sources],
            "rules": self._rules(),
            "documents": sum(each["documents"] for each in reasons),
            "cluster_stages": list(dict.fromkeys(each["stage"] for each in reasons if each["rule"] == Global.rule)),
            "notes": [masked(note) for note in output.notes],
        }

    def _source(self, source: str) -> dict[str, Any]:
        own = [reason for reason in self.rows.reasons if reason["source"] == source]
        counts = {fate: sum(reason["documents"] for reason in own if reason["fate"] == fate) for fate in FATES}
        reported, tokens = self.output.counts_of(source), self.output.tokens_of(source)
        read = sum(counts.values()) if reported is None else reported.documents.read
        return {"name": source, "read": read, **counts, "tokens": tokens}

    def _rules(self) -> list[dict[str, Any]]:
        """Every rule that measured or dropped documents, in the order of sources and stages."""
        named = ("source", "stage", "rule")
        dropped = {tuple(each[name] for name in named): each for each in self.rows.reasons if each["fate"] == "dropped"}
        measured = {(rule.source, rule.stage, rule.name): rule.rule for rule in self.output.rules("")}
        listed = []
        for name in measured | dropped:
            rule, reason = measured.get(name), dropped.get(name, {"threshold": None, "documents": 0})
            about = {"threshold": reason["threshold"], "option": "", "side": "other", "mode": "drop"}
            about |= {key: getattr(rule, key) for key in about} if rule is not None else {}
            has_borderline = rule is not None and bool(rule.borderline.kept or rule.borderline.dropped)
            has = {"has_borderline": has_borderline, "has_sweep": about["side"] != "other"}
            listed.append({**dict(zip(named, name)), **about, "dropped": reason["documents"], **has})
        return listed


def _with_errors(lines: Iterator[Mapping[str, Any]]) -> Generator[Mapping[str, Any]]:
    try:
        yield from lines
    except Exception as error:
        yield {"error": str(refusal(error))}


def steps_of(output: Inspector, key: bytes, request: Request) -> Answer:
    if output.snapshot is None or not output.snapshot.has_tokens:
        raise UserError("This output has no tokens, so no training step reads it. Add a tokenizer to the mixture.")
    state = request.body.get("state") if isinstance(request.body, Mapping) else None
    if request.body is not None and not isinstance(state, Mapping):
        raise UserError('Expected {"state": …}, the JSON of one loader.state_dict().')
    size = parsed(Numbers, request.query).global_batch_size if state is None else None
    try:
        trace = open_run(output.root.url, global_batch_size=size, state=state).find_document(key.hex())
    except (KeyError, TypeError, ValueError):
        raise UserError("This is no state of a loader. Expected the JSON of one loader.state_dict().") from None
    steps = [asdict(appearance) for appearance in trace.appearances[:MOST_STEPS]]
    more = len(trace.appearances) > MOST_STEPS
    return {"steps": steps, "more": more, "searched": trace.searched, "elsewhere": trace.elsewhere}


def key_of(digits: str) -> bytes:
    if re.fullmatch(r"[0-9a-f]{32}", digits) is None:
        raise UserError("Expected the key of a document: 32 hex digits.")
    return bytes.fromhex(digits)


def parsed(model: type[M], options: Mapping[str, str]) -> M:
    """The options of a request. Raises UserError for text in the place of a number, and the like."""
    try:
        return model.model_validate({name: text for name, text in options.items() if text})
    except ValidationError as error:
        wrong = error.errors()[0]
        raise UserError(f"{wrong['loc'][0]}: {wrong['msg'].replace('Input should be', 'expected')}.") from None


def refusal(error: Exception) -> RequestError:
    """The answer for an error. The terminal gets the lines of code of a defect alone."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, DatapipeError):
        is_users = isinstance(error, UserError)
        return RequestError(HTTPStatus.BAD_REQUEST if is_users else HTTPStatus.INTERNAL_SERVER_ERROR, masked(str(error)))
    lines = "".join(traceback.format_list(traceback.extract_tb(error.__traceback__)))
    sys.stderr.write(f"datapipe: an endpoint failed with {type(error).__name__}:\n{masked(lines)}\n")
    return RequestError(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        f"This is a defect of datapipe: {type(error).__name__}. Its traceback is where `datapipe browse` was started.",
    )


def open_server(url: str, port: int, limits: Limits | None = None) -> PageServer:
    """A server of the page, listening and not yet answering. Raises UserError."""
    return PageServer(port, Api(Inspector.open(url, limits)))


def serve(url: str, port: int, *, opens: bool, emit: Callable[[str], None], limits: Limits | None = None) -> None:
    """Serves the page until KeyboardInterrupt, which it raises. `emit` gets the address before
    anything is answered; `opens` opens it in a browser, if there is one."""
    with open_server(url, port, limits) as server:
        emit(server.url)
        server.start()
        if opens:
            import webbrowser

            threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
        threading.Event().wait()  # here a signal interrupts no finalizer, which would swallow its KeyboardInterrupt
