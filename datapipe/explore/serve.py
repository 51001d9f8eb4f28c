"""Starts the page of an output, and serves it until it is stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable

from datapipe.explore.database import Limits
from datapipe.explore.documents import Inspector
from datapipe.explore.endpoints import Api
from datapipe.explore.server import PageServer


def open_server(url: str, port: int, limits: Limits | None = None) -> PageServer:
    """A server of the page, listening and not yet answering. Raises UserError."""
    return PageServer(port, Api(Inspector.open(url, limits)))


def serve(url: str, port: int, *, opens: bool, say: Callable[[str], None], limits: Limits | None = None) -> None:
    """Serves the page until KeyboardInterrupt, which it raises.

    Args:
        opens: whether to open the page in a browser, if there is one.
        say: gets one line, the address, before anything is answered.
    """
    with open_server(url, port, limits) as server:
        say(server.url)
        server.start()
        if opens:
            import webbrowser

            threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
        threading.Event().wait()  # here a signal meets no finalizer, which would swallow its KeyboardInterrupt
