"""Starts the page of an output, and serves it until it is stopped."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from datapipe.explore.database import Limits
from datapipe.explore.documents import Inspector
from datapipe.explore.endpoints import Api
from datapipe.explore.server import PageServer

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_POLL_S = 0.2


def open_server(url: str, port: int, limits: Limits | None = None) -> PageServer:
    """A server of the page, listening and not yet answering. Raises UserError."""
    return PageServer(port, Api(Inspector.open(url, limits)))


def serve(url: str, port: int, *, opens: bool, say: Callable[[str], None], limits: Limits | None = None) -> None:
    """Serves the page until KeyboardInterrupt, which it raises.

    Args:
        opens: whether to open the page in a browser.
        say: gets one line, the address, before anything is answered.
    """
    server = open_server(url, port, limits)
    try:
        say(server.url)
        if opens:
            _open(server.url)
        with _interrupting(server):
            server.serve_forever(_POLL_S)
    finally:
        server.server_close()


@contextmanager
def _interrupting(server: PageServer) -> Iterator[None]:
    """Within it, the signals that would raise KeyboardInterrupt set a mark that the server looks at."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        server.is_interrupted = True

    numbers = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _open(url: str) -> None:
    """Opens the page in a browser, if there is one; the address is printed anyway."""
    import webbrowser

    threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
