"""An S3 server on loopback, in this process or one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import Request, urlopen

import pyarrow.fs as pafs

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}


@contextmanager
def object_store(bucket: str, host: str = "127.0.0.1") -> Iterator[str]:
    """Starts a server with one empty bucket; yields the query that URLs of it end with."""
    from moto.server import ThreadedMotoServer

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


@contextmanager
def served_objects(bucket: str) -> Iterator[str]:
    """The same server in a process of its own, which ends with the context; yields the query."""
    command = [sys.executable, "-c", _SERVER, bucket]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.communicate()  # the end of its input ends it


_SERVER = (
    "import logging, sys\n"
    "logging.getLogger('werkzeug').setLevel('ERROR')\n"
    "from tests.support.object_store import object_store\n"
    "with object_store(sys.argv[1]) as query: print(query, flush=True); sys.stdin.read()\n"
)
