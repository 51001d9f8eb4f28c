"""The options of `datapipe serve`, written once: for the command line, and for programs."""

from pathlib import Path
from typing import Any

from datapipe.dataclass import dataclass, field


def _option(default: Any, text: str, *names: str, **limits: Any) -> Any:
    """A field with its option on the command line. The metavar SIZE is for sizes such as 64MB, whose default is `shown`."""
    return field(default=default, metadata={"names": names, "help": text, **limits})


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    host: str = _option("127.0.0.1", "The address to listen on.", metavar="ADDRESS")
    port: int = _option(8815, "0 takes a free port.", min=0, max=65535)
    certificate: Path | None = _option(None, "File of certificates in PEM.", "--tls-cert", metavar="FILE")
    key: Path | None = _option(None, "File of the private key in PEM.", "--tls-key", metavar="FILE")
    tokens: Path | None = _option(
        None, "File of tokens and what each may read. Changes are read while the service runs.", metavar="FILE"
    )
    status_port: int | None = _option(None, "Port for HTTP: /healthz, /readyz, /metrics. Default: none.", min=0, max=65535)
    streams: int = _option(256, "Maximum number of streams of all clients at a time.", min=1)
    client_streams: int = _option(64, "Maximum number of streams of one client at a time.", min=1)
    batch_bytes: int = _option(1 << 30, "Maximum size of a batch of one rank.", metavar="SIZE", shown="1GiB")
    memory_bytes: int = _option(
        4 << 30, "Maximum memory of what all streams build and send.", "--memory", metavar="SIZE", shown="4GiB"
    )
    drain_s: float = _option(30.0, "Seconds that streams have to end after SIGTERM.", "--drain", metavar="SECONDS", min=0)
    shares_files: bool = _option(True, "Do not let clients on this machine read the files.", " /--no-files", show_default=False)
    cache_bytes: int | None = _option(
        None, "Maximum size of the local copy of outputs on object stores. Default: 16GiB.", metavar="SIZE"
    )
    cache_folder: str | None = _option(None, "Folder of that copy.", metavar="FOLDER")
