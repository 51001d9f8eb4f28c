"""`datapipe tokenizer train`: a tokenizer without a mixture."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from datapipe.cli.options import size_of
from datapipe.errors import UserError


def tokenizer_train(
    inputs: Annotated[list[str], typer.Argument(metavar="INPUT…", help="Files or globs, of any format that is read.")],
    vocab_size: Annotated[int, typer.Option(metavar="N", help="Tokens in all: 256 bytes, merges, and the end-of-text token.")],
    pattern: Annotated[str, typer.Option(metavar="P", help="How text is cut: gpt2, cl100k, o200k, llama3, qwen2.")] = "gpt2",
    eos: Annotated[str, typer.Option(metavar="T", help="The token that ends a document.")] = "<|endoftext|>",
    sample: Annotated[str, typer.Option(metavar="SIZE", help="Text to train on.")] = "256MB",
    output: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the tokenizer.")] = Path("tokenizer.json"),
    text: Annotated[str, typer.Option(metavar="FIELD", help="Input field with the text; dots reach into objects.")] = "text",
) -> None:
    """Train a byte-level BPE tokenizer from files, and tell what it makes of documents held out from training."""
    from datapipe.engine.train_tokenizer import train_tokenizer_from_files
    from datapipe.report.funnel import print_training, wide_console

    if output.exists() or not output.parent.is_dir():
        found = "exists already, and is not overwritten" if output.exists() else "its folder does not exist"
        raise UserError(f"--output {output}: {found}. Give another name")
    try:
        with tempfile.TemporaryFile(dir=output.parent):
            pass
    except OSError as error:  # known before the work, not after it
        raise UserError(f"--output {output}: its folder cannot be written: {error.strerror}. Give another name") from error
    sample_bytes, console = size_of("--sample", sample), wide_console()
    with console.status("") as status:
        trained = train_tokenizer_from_files(
            inputs,
            vocab_size=vocab_size,
            pattern=pattern,
            eos=eos,
            sample_bytes=sample_bytes,
            text_field=text,
            say=status.update,
        )
    output.write_bytes(trained.content)
    print_training(trained, console)
    print(f"wrote {output}")
