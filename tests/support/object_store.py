"""An S3 server on loopback, in this process or in its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import Request, urlopen

import pyarrow.fs as pafs

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}


@contextmanager
def object_store(bucket: str, host: str = "127.0.0.1") -> Iterator[str]:
    """Starts a server with one empty bucket; yields the query that URLs of it end with."""
    from moto.server import ThreadedMotoServer
    from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler

    WSGIRequestHandler.disable_nagle_algorithm = True  # an answer in two writes would wait for an acknowledgement
    BaseWSGIServer.serve_forever.__defaults__ = (0.02,)  # seconds until it sees that it is to end

    before = {name: os.environ.get(name) for name in CREDENTIALS}
    os.environ.update(CREDENTIALS)
    server = ThreadedMotoServer(host, port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        store = pafs.S3FileSystem(endpoint_override=f"http://{host}:{port}", region="us-east-1", allow_bucket_creation=True)
        store.create_dir(bucket)
        yield f"?endpoint_override=http://{host}:{port}&region=us-east-1"
    finally:
        with urlopen(Request(f"http://{host}:{port}/moto-api/reset", method="POST")):  # its objects would outlive the server
            server.stop()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
