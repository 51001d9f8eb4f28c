r"""Formulas as LaTeX between dollar signs, written into the tree of a page before an engine searches its main text.

| on the page | its LaTeX |
|---|---|
| `<script type="math/tex">`, MathJax | the text of the script; `mode=display` is a displayed formula |
| `<math>`, also of KaTeX, MathJax and Wikipedia | its annotation in TeX, its `alttext`, or converted (`_mathml.py`) |
| `<img class="latex" alt="…">`, WordPress and older Wikipedia | its alternative text |
| `<span data-mathml="<math>…">`, MathJax's pictures | the MathML, converted |

The text stands in place of the outermost element that shows the formula. Text of a formula outside of its tokens, such as the
rest of a paragraph behind an `<msup>` that is not closed, stands behind it. Comments of TeX are left out, since lines are
joined.
"""

import re
from typing import Any

from stages.extract._mathml import latex_of, stray_text

_FORMULAS = (
    'script[type^="math/tex" i], math, m\\:math, mml\\:math, img.latex[alt], img[class*="mwe-math-fallback"][alt], '
    "[data-mathml]"
)
_DISPLAYED = (
    ".katex-display, .MathJax_Display, .MJXc-display, .mwe-math-element-block, .mwe-math-fallback-image-display, "
    "mjx-container[display]"
)
_SHOWN = ".katex, .mwe-math-element, mjx-container, .MathJax, .MathJax_SVG, .MathJax_CHTML, .mjx-chtml"
_PREVIEW = re.compile(r"(?:^|\s)(?:MathJax|MJXc|mjx)")

_STYLE = re.compile(r"\{\\(?:displaystyle|textstyle)(?![A-Za-z])\s*")
_WORDS = ("math", "MATH", "Math", "latex", "LATEX")
_CDATA = re.compile(r"(?:%\s*)?(?:<!\[CDATA\[|\]\]>)")
_COMMENT = re.compile(r"(?<!\\)((?:\\\\)*)%.*")
"""A comment of TeX, with the line breaks `\\\\` before its sign; `\\%` is a percent sign."""
_DELIMITED = re.compile(r"(\$\$?)([^$]+)\1|\\\((.+)\\\)|\\\[(.+)\\\]")
_IN_LINE = re.compile("p|span|a|b|i|em|strong|li|td|th|dd|dt|figcaption|blockquote|h[1-6]")
"""Elements whose text a displayed formula belongs to; elsewhere it is a paragraph."""


def has_formulas(page: str) -> bool:
    """Whether a page may have formulas; False for one that has none for sure."""
    return any(word in page for word in _WORDS)


def write_latex(tree: Any) -> bool:
    """Puts LaTeX in the place of the formulas of a page, resiliparse's HTMLTree; returns whether there were any."""
    formulas = tree.document.query_selector_all(_FORMULAS).values()
    for formula in sorted(formulas, key=lambda formula: (formula.tag != "script", formula.hasattr("data-mathml"))):
        if formula.parent is None or formula.parent.closest("math") is not None:  # within one that is written whole
            continue
        displayed = formula.closest(_DISPLAYED)
        shown = displayed or formula.closest(_SHOWN) or formula
        latex = _delimited(formula, displayed is not None)
        if shown.parent is None or not latex:  # a second form of a formula that is written already
            continue
        if formula.tag == "script":
            _remove_previews(formula)
        text, stray = tree.create_text_node(latex), stray_text(formula)
        if latex.startswith("$$") and not _IN_LINE.fullmatch(shown.parent.tag):
            paragraph = tree.create_element("p")
            paragraph.append_child(text)
            text = paragraph
        if stray:
            shown.parent.insert_before(tree.create_text_node(f" {stray}"), shown.next)
        shown.parent.replace_child(text, shown)
    return len(formulas) > 0


def _delimited(formula: Any, is_displayed: bool) -> str:
    if formula.tag == "script":
        latex, mode = formula.text_content, (formula.getattr("type") or "").lower()
        is_displayed |= "mode=display" in "".join(mode.split())
    elif formula.tag == "img":
        latex = formula.getattr("alt") or ""
    else:
        formula = _within(formula)
        annotation = formula.query_selector('annotation[encoding*="tex" i]')
        authored = (annotation.text_content if annotation is not None else "").strip()
        latex = authored or (formula.getattr("alttext") or "").strip() or latex_of(formula)
        is_displayed |= "block" in (formula.getattr("display") or "") or formula.getattr("mode") == "display"
    latex = " ".join(_COMMENT.sub(r"\1", _CDATA.sub(" ", latex)).split())
    bare = _DELIMITED.fullmatch(latex)
    latex = (bare[2] or bare[3] or bare[4]).strip() if bare else latex
    latex = _unstyled(latex)
    sign = "$$" if is_displayed else "$"
    return f"{sign}{latex}{sign}" if latex else ""


def _within(formula: Any) -> Any:
    if not formula.hasattr("data-mathml"):
        return formula
    from resiliparse.parse.html import HTMLTree

    tree: Any = HTMLTree.parse(formula.getattr("data-mathml"))
    return tree.document.query_selector("math") or formula


def _unstyled(latex: str) -> str:
    style = _STYLE.match(latex)
    if style is None:
        return latex
    depth = 1
    for brace in re.finditer(r"\\.|[{}]", latex[style.end() :]):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            inner = latex[style.end() : style.end() + brace.start()]
            return inner.strip() if style.end() + brace.end() == len(latex) else latex
    return latex


def _remove_previews(script: Any) -> None:
    """Removes the preview and the shown formula that MathJax has put before its script."""
    before = script.previous_element_sibling
    while before is not None and _PREVIEW.search(before.class_name or ""):
        before, preview = before.previous_element_sibling, before
        preview.remove()  # not decompose: a formula within it is still to be read
