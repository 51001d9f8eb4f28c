"""The picture of `datapipe inspect OUTPUT --step 0 --tokens` in datapipe/tokens/README.md.

    conversations ─▶ a run ─▶ rows of a batch ─▶ `print_rows` on a terminal of 88 columns ─▶ lines of styled text ─▶ SVG

`python -m tests.support.pictures` writes it again.
"""

import io
from collections.abc import Callable
from html import escape
from pathlib import Path

from rich.console import Console
from rich.text import Text

from datapipe.explore.batch_tokens import rows_of_step
from datapipe.explore.printed import print_rows
from tests.support import corpora, runs
from tests.support.chat_tokenizer import chat_tokenizer

CONVERSATIONS = [
    "How are you?¦Fine, thanks!",
    "What does </s> mean in a text?¦Nothing: it is text.¦And between turns?¦There it is a token.",
    "Hello¦Hello there, how are you?",
]
_COLORS = {5: "magenta", 6: "cyan", 10: "green"}  # of a terminal, by number
_COLUMNS, _CHAR, _LINE, _EDGE = 88, 7.8, 19, 14
_STYLE = """text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre;fill:#1f2328}
.bold{font-weight:700}.magenta{fill:#a02a8a}.cyan{fill:#0b7285}.green{fill:#2b8a3e}.dim{fill:#8b949e}.magenta.dim{fill:#cd94c2}"""


def token_picture(folder: Path) -> str:
    """The picture, of a run in a folder."""
    (folder / "tokenizer.json").write_text(chat_tokenizer().to_str())
    corpora.write_jsonl(folder / "a.jsonl", [{"text": text} for text in CONVERSATIONS])
    sources = f"  chat:\n    path: {folder}/a.jsonl\n    stages:\n      - tests.support.chat_tokenizer:as_chat\n"
    tail = f'tokenizer: {{path: {folder}/tokenizer.json, eos: "</s>", bos: "<s>"}}\npack: {{sequence_length: 64}}'
    runs.run_mixture(runs.write_mixture(folder, sources, "", tail), make_engine=runs.InProcess)
    rows = rows_of_step(str(folder / "out"), 0, 3)
    return picture(lambda console: print_rows(rows, console))


def picture(print_to: Callable[[Console], None]) -> str:
    """What is printed to a terminal, as SVG."""
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, color_system="standard", no_color=False, width=_COLUMNS)
    print_to(console)
    lines = Text.from_ansi(stream.getvalue().rstrip("\n")).split("\n", allow_blank=True)
    width, height = 2 * _EDGE + _COLUMNS * _CHAR, 2 * _EDGE + len(lines) * _LINE
    drawn = [
        f'<text x="{_EDGE}" y="{_EDGE + (number + 1) * _LINE - 5}" xml:space="preserve">{_spans(line, console)}</text>'
        for number, line in enumerate(lines)
    ]
    size = f'width="{width:.0f}" height="{height}" viewBox="0 0 {width:.0f} {height}"'
    frame = '<rect width="100%" height="100%" rx="6" fill="#ffffff" stroke="#d0d7de"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>{_STYLE}</style>\n{frame}\n'
    return head + "\n".join(drawn) + "\n</svg>\n"


def _spans(line: Text, console: Console) -> str:
    parts = []
    for segment in line.render(console):
        style = segment.style
        names = [] if style is None else [name for name in ("bold", "dim") if getattr(style, name)]
        names += [] if style is None or style.color is None else [_COLORS[style.color.number]]
        kind = f' class="{" ".join(names)}"' if names else ""
        parts.append(f"<tspan{kind}>{escape(segment.text, quote=False)}</tspan>")
    return "".join(parts)
