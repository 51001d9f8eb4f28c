"""An S3 server on loopback, in this process or in its own."""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qsl
from urllib.request import Request, urlopen

from datapipe.storage.root import Root

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}


@contextmanager
def object_store(bucket: str, host: str = "127.0.0.1", delay_s: float = 0.0) -> Iterator[str]:
    """Starts a server with one empty bucket; yields the query that URLs of it end with. `delay_s`: before every answer."""
    from moto.server import ThreadedMotoServer
    from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler

    WSGIRequestHandler.disable_nagle_algorithm = True  # an answer in two writes would wait for an acknowledgement
    BaseWSGIServer.serve_forever.__defaults__ = (0.02,)  # seconds until it sees that it is to end
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # no line for each request
    answer = WSGIRequestHandler.run_wsgi

    def answer_late(self: WSGIRequestHandler) -> None:
        time.sleep(delay_s)
        answer(self)

    WSGIRequestHandler.run_wsgi = answer_late if delay_s else answer
    before = {name: os.environ.get(name) for name in CREDENTIALS}
    os.environ.update(CREDENTIALS)
    server = ThreadedMotoServer(host, port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        with urlopen(Request(f"http://{host}:{port}/{bucket}", method="PUT")):
            pass
        yield f"?endpoint_override=http://{host}:{port}&region=us-east-1"
    finally:
        with urlopen(Request(f"http://{host}:{port}/moto-api/reset", method="POST")):  # its objects would outlive the server
            server.stop()
        WSGIRequestHandler.run_wsgi = answer
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def upload(folder: Path, url: str) -> None:
    """Copies the files of a folder to a URL."""
    copy_files(Root(str(folder)), Root(url))


def copy_files(source: Root, target: Root) -> None:
    for path, _ in source.list_files(""):
        if target.local is not None:
            (target.local / path).parent.mkdir(parents=True, exist_ok=True)
        target.write_atomic(path, source.read_bytes(path))


def put_public(query: str, path: str, content: bytes) -> None:
    """Writes an object, "bucket/key", that needs no credentials to be read."""
    endpoint = dict(parse_qsl(query.removeprefix("?")))["endpoint_override"]
    headers = {"x-amz-acl": "public-read", "Content-Type": "application/octet-stream"}
    with urlopen(Request(f"{endpoint}/{path}", data=content, method="PUT", headers=headers)):
        pass
