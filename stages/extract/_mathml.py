r"""MathML as LaTeX, for formulas whose author's LaTeX is not on the page: `<msup><mi>x</mi><mn>2</mn></msup>` is `x^2`.

Presentation MathML as the elements of MathML Core have it. Greek letters are found by their names in Unicode, letters of other
alphabets by their compatibility forms; signs without a command stay as they are, which LaTeX engines of today read.
"""

import re
import unicodedata
from collections.abc import Callable
from typing import Any, Literal

_TOKENS, _UNSEEN = ("mi", "mn", "mo", "mtext", "ms"), ("annotation", "annotation-xml", "mphantom", "none", "mprescripts")
_DEEPEST = 100  # Levels of elements below which a formula is taken as its characters
_COMMANDS = r"""
    · cdot ⋅ cdot × times ÷ div ± pm ∓ mp ∘ circ ⊕ oplus ⊗ otimes ∑ sum ∏ prod ∫ int ∬ iint ∮ oint ⋃ bigcup ⋂ bigcap ∪ cup ∩ cap
    ∈ in ∉ notin ∋ ni ⊂ subset ⊆ subseteq ⊃ supset ⊇ supseteq ∅ emptyset ∖ setminus ≤ le ≥ ge ≠ ne ≈ approx ≡ equiv ∼ sim ≅ cong
    ∝ propto ≪ ll ≫ gg → to ← leftarrow ↔ leftrightarrow ⇒ Rightarrow ⇔ Leftrightarrow ↦ mapsto ∞ infty ∂ partial ∇ nabla
    ∀ forall ∃ exists ¬ neg ∧ wedge ∨ vee ⊥ perp ∥ parallel ∠ angle … ldots ⋯ cdots ⋮ vdots ⋱ ddots ⟨ langle ⟩ rangle ‖ |
    ⌊ lfloor ⌋ rfloor ⌈ lceil ⌉ rceil ℓ ell ℏ hbar \ backslash φ varphi ϕ phi ε varepsilon ϵ epsilon ς varsigma λ lambda
    Λ Lambda ϑ vartheta √ surd † dagger { { } } % % # # & & $ $ _ _
"""
"""Signs, each with its command behind it."""

_ACCENTS = (
    "¯ bar ˉ bar ‾ overline _ overline ― overline - overline ^ hat ˆ hat ˜ tilde ~ tilde ∼ tilde → vec ⃗ vec ˙ dot . dot ¨ ddot"
)


def _pairs(words: str) -> dict[str, str]:
    return dict(zip(words.split()[::2], words.split()[1::2], strict=True))


_SIGNS = (
    {sign: "\\" + command for sign, command in _pairs(_COMMANDS).items()}
    | dict.fromkeys("\u2061\u2062\u2063\u2064\u200b\ufeff", "")
    | {"−": "-", "∗": "*", "′": "'", "″": "''", "°": r"^\circ", "ο": "o", "\xa0": " "}
)
_OVER = {_SIGNS.get(sign, sign): name for sign, name in _pairs(_ACCENTS).items()} | {"⏞": "overbrace"}
_UNDER = dict.fromkeys((r"\_", "_", "̲", "―", "-"), "underline") | {"⏟": "underbrace"}
_FUNCTIONS = re.compile(
    "arccos|arcsin|arctan|arg|cosh?|cot|csc|deg|det|dim|exp|gcd|hom|inf|ker|lim|liminf|limsup|ln|log|max|min|sec|sinh?|sup|tanh?|Pr"
)
_LIMITS = re.compile(r"\\(?:sum|prod|oint|i*int|big\w+|lim(?:sup|inf)?|max|min|sup|inf|gcd|det|Pr|arg)|\\operatorname\{.*\}")
_ONE_UNIT = re.compile(r"\w|\\[A-Za-z]+|[\d.,]+|\\(?:mathrm|mathbb|mathbf|operatorname|text)\{[^{}]*\}|\([^()]*\)")
_CAPITALS = re.compile("Gamma|Delta|Theta|Xi|Pi|Sigma|Upsilon|Phi|Psi|Omega")


def latex_of(element: Any, depth: int = 0) -> str:
    """The LaTeX of an element of MathML, `depth` elements below the formula."""
    name = _name(element)
    if name in _TOKENS or depth > _DEEPEST:
        return _token(name, " ".join(element.text_content.split()), element.getattr("mathvariant") or "")
    if name in _UNSEEN:
        return ""
    if name == "mspace":
        return " "
    if name == "mtable":
        return _table(element, depth)
    if name == "mmultiscripts":
        return _multiscripts(element.children.values(), depth)
    parts = [latex_of(child, depth + 1) for child in element.children.values()]
    if name == "semantics":
        return parts[0] if parts else ""
    if name == "mfenced":
        return _fenced(element, parts)
    if name == "msqrt":
        return rf"\sqrt{{{joined(parts)}}}"
    if name == "mfrac" and (element.getattr("linethickness") or "").startswith("0"):
        name = "binomial"
    form = _FORMS.get(name)
    return form[1](parts) if form and len(parts) == form[0] else joined(parts)


def stray_text(math: Any) -> str:
    """The text of a `<math>` outside of its tokens, which is no part of its formula; "" for any other element."""
    texts: list[str] = []
    nodes = [math] if _name(math) == "math" else []
    while nodes:
        node = nodes.pop()
        if node.tag == "#text":
            texts.append(node.value)
        elif node is math or _name(node) not in (*_TOKENS, *_UNSEEN):
            nodes += node.child_nodes.values()[::-1]
    return " ".join(" ".join(texts).split())


def joined(parts: list[str]) -> str:
    """Pieces of LaTeX in a row; a space where a letter would lengthen a command."""
    text = ""
    for part in parts:
        text += " " if part[:1].isalpha() and re.search(r"\\[A-Za-z]+\Z", text[-40:]) else ""
        text += part
    return text


def _name(element: Any) -> str:
    return element.tag.rpartition(":")[2]  # XHTML has `m:math`


def _token(name: str, text: str, variant: str) -> str:
    if name in ("mtext", "ms"):
        return rf"\text{{{joined([_sign(sign) for sign in text])}}}" if text else " "
    if _FUNCTIONS.fullmatch(text):
        return "\\" + text
    if name == "mi" and len(text) > 1 and text.isalpha() and text.isascii():
        return rf"\mathrm{{{text}}}"
    latex = joined([_sign(sign) for sign in text])
    return rf"\mathbf{{{latex}}}" if variant == "bold" and latex else latex


def _sign(sign: str) -> str:
    if sign in _SIGNS or sign.isascii():
        return _SIGNS.get(sign, sign)
    name = unicodedata.name(sign, "")
    if name.startswith(("DOUBLE-STRUCK CAPITAL ", "MATHEMATICAL DOUBLE-STRUCK CAPITAL ")):
        return rf"\mathbb{{{unicodedata.normalize('NFKC', sign)}}}"
    plain = unicodedata.normalize("NFKC", sign) if "MATHEMATICAL" in name else sign
    if plain in _SIGNS or plain.isascii():
        return _SIGNS.get(plain, plain)
    greek = re.fullmatch(r"GREEK (SMALL|CAPITAL) LETTER (\w+)", unicodedata.name(plain, ""))
    command = "" if greek is None else greek[2].lower() if greek[1] == "SMALL" else greek[2].capitalize()
    return "\\" + command if greek and (greek[1] == "SMALL" or _CAPITALS.fullmatch(command)) else plain


def _base(latex: str) -> str:
    """What a script stands at, in braces where LaTeX would take its last character alone."""
    return latex if _ONE_UNIT.fullmatch(latex) else f"{{{latex}}}"


def _script(latex: str) -> str:
    return latex if len(latex) == 1 else f"{{{latex}}}"


def _stacked(base: str, script: str, side: Literal["over", "under"]) -> str:
    if _LIMITS.fullmatch(base):
        return f"{base}{'^' if side == 'over' else '_'}{_script(script)}"
    accent = (_OVER if side == "over" else _UNDER).get(script)
    return rf"\{accent}{{{base}}}" if accent else rf"\{side}set{{{script}}}{{{base}}}"


def _both(parts: list[str]) -> str:
    base, under, over = parts
    is_limit = _LIMITS.fullmatch(base)
    return f"{base}_{_script(under)}^{_script(over)}" if is_limit else _stacked(_stacked(base, under, "under"), over, "over")


def _fenced(element: Any, parts: list[str]) -> str:
    opening, closing, separators = (element.getattr(name) for name in ("open", "close", "separators"))
    separator = "," if separators is None else separators.strip()[:1]
    inner = joined([piece for part in parts for piece in (separator, part)][1:])
    return joined(
        [_sign(opening[:1]) if opening is not None else "(", inner, _sign(closing[:1]) if closing is not None else ")"]
    )


def _multiscripts(children: list[Any], depth: int) -> str:
    """A base with pairs of scripts behind it and, behind `<mprescripts>`, before it."""
    names, parts = [_name(child) for child in children], [latex_of(child, depth + 1) for child in children]
    last = names.index("mprescripts") if "mprescripts" in names else len(names)
    return joined(
        [_pairs_of_scripts("", parts[last + 1 :]), *[_pairs_of_scripts(_base(part), parts[1:last]) for part in parts[:1]]]
    )


def _pairs_of_scripts(base: str, scripts: list[str]) -> str:
    """A base with its scripts, of which each second one is above."""
    latex = base
    for under, over in zip(scripts[::2], [*scripts[1::2], ""]):
        latex = latex if latex == base and base else f"{latex}{{}}"
        latex += (f"_{_script(under)}" if under else "") + (f"^{_script(over)}" if over else "")
    return latex


def _table(element: Any, depth: int) -> str:
    rows = [row for row in element.children.values() if _name(row) in ("mtr", "mlabeledtr")]
    lines = [" & ".join(latex_of(cell, depth + 2) for cell in row.children.values()) for row in rows]
    return r"\begin{matrix} " + r" \\ ".join(lines) + r" \end{matrix}"


_FORMS: dict[str, tuple[int, Callable[[list[str]], str]]] = {
    "msup": (2, lambda parts: f"{_base(parts[0])}^{_script(parts[1])}"),
    "msub": (2, lambda parts: f"{_base(parts[0])}_{_script(parts[1])}"),
    "msubsup": (3, lambda parts: f"{_base(parts[0])}_{_script(parts[1])}^{_script(parts[2])}"),
    "mfrac": (2, lambda parts: rf"\frac{{{parts[0]}}}{{{parts[1]}}}"),
    "binomial": (2, lambda parts: rf"\binom{{{parts[0]}}}{{{parts[1]}}}"),
    "mroot": (2, lambda parts: rf"\sqrt[{parts[1]}]{{{parts[0]}}}"),
    "mover": (2, lambda parts: _stacked(parts[0], parts[1], "over")),
    "munder": (2, lambda parts: _stacked(parts[0], parts[1], "under")),
    "munderover": (3, _both),
}
"""The number of children of an element, and its LaTeX from theirs."""
