"""`datapipe tokenizer train`: trains a tokenizer without a mixture."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from datapipe.cli.options import size_of
from datapipe.errors import UserError


def tokenizer_train(
    inputs: Annotated[list[str], typer.Argument(metavar="INPUT…", help="Files or globs, of any supported format.")],
    vocab_size: Annotated[
        int, typer.Option(metavar="N", help="Number of tokens: 256 bytes, merges and the end-of-text token.")
    ],
    pattern: Annotated[str, typer.Option(metavar="P", help="Pre-tokenization: gpt2, cl100k, o200k, llama3, qwen2.")] = "gpt2",
    eos: Annotated[str, typer.Option(metavar="T", help="The end-of-text token.")] = "<|endoftext|>",
    sample: Annotated[str, typer.Option(metavar="SIZE", help="About how many bytes of text to train on.")] = "256MB",
    output: Annotated[Path, typer.Option(metavar="FILE", help="The file to write.")] = Path("tokenizer.json"),
    text: Annotated[str, typer.Option(metavar="FIELD", help="Input field with the text; dots select nested fields.")] = "text",
) -> None:
    """Train a byte-level BPE tokenizer from files, and measure it.

    It is measured on documents that are held out from training.

    \b
    datapipe tokenizer train "data/*.jsonl" \\
      --vocab-size 32000 --output tokenizer.json
    """
    from datapipe.engine.train_tokenizer import train_tokenizer_from_files
    from datapipe.report.layout import print_text, wide_console
    from datapipe.report.screen import print_training

    if output.exists() or not output.parent.is_dir():
        problem = "the file exists and is not overwritten" if output.exists() else "its folder does not exist"
        raise UserError(f"--output {output}: {problem}. Expected a new file in an existing folder")
    try:
        with tempfile.TemporaryFile(dir=output.parent):
            pass
    except OSError as error:  # checked before the work, which may take long
        raise UserError(f"--output {output}: its folder is not writable: {error.strerror}. Give another folder") from error
    sample_bytes, console = size_of("--sample", sample), wide_console()
    with console.status("") as status:
        trained = train_tokenizer_from_files(
            inputs,
            vocab_size=vocab_size,
            pattern=pattern,
            eos=eos,
            sample_bytes=sample_bytes,
            text_field=text,
            emit=status.update,
        )
    output.write_bytes(trained.content)
    print_training(trained, console)
    print_text(f"wrote {output}", console)
