"""A rubric: the file with the question about a document, and how the answer is read.

    ---                                front matter, YAML: the fields of `Rubric`
    scale: [0, 5]
    answer: '^Score: (?P<score>.*)$'
    max_chars: 6000
    ---
    Judge the extract below. …         the template: `{text}` stands once, where the document comes

    text  ─▶  cut to `max_chars` characters  ─▶  inserted as it is  ─▶  the message to the model
    answer  ─▶  exactly one match of `answer`, a number of the scale  ─▶  score and reason, or why there is none

Documents are inserted literally. What decides the request belongs to the identity of an answer;
`scale`, `answer` and `answer_after` do not, so they may be corrected without asking again.
"""

import re
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from datapipe.config.interpolation import Origins
from datapipe.config.problems import problems_error
from datapipe.config.yaml import parse_yaml
from datapipe.dataclass import dataclass
from datapipe.errors import UserError

PLACE = "{text}"
_FENCE = "---"
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,15}")
_DECIMAL_NUMBER = re.compile(r"[+-]?[0-9]{1,15}(\.[0-9]{1,15})?")
_EXPECTED_SHAPE = f"Expected front matter between two lines `{_FENCE}`, then a template with {PLACE}"
_OWN_OPTIONS = frozenset({"model", "messages", "stream", "n", "temperature", "max_tokens"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    value: float
    reason: str


class Rubric(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    scale: tuple[float, float] = Field(description="Lowest and highest score.")
    answer: str = Field(
        default=r"^Score: (?P<score>.*)$",
        description="Regular expression of Python with a group `score`. It must match once; ^ and $ are the ends of lines.",
    )
    answer_after: str = Field(
        default="", description="Text that ends the thinking of the model, such as </think>: the answer follows its last one."
    )
    decimals: bool = Field(default=False, description="Whether scores such as 3.5 are accepted.")
    max_chars: int = Field(default=6000, ge=1, description="Characters of a document that are sent, from its beginning.")
    temperature: float = Field(default=0.0, ge=0, description="Of sampling; 0 takes the likeliest token.")
    max_tokens: int = Field(default=512, ge=1, description="Tokens of an answer at most; one that is cut off is not parsed.")
    system: str = Field(default="", description="The system message; none by default.")
    options: dict[str, Any] = Field(
        default_factory=dict, description="Further options of the request, as the server takes them, such as top_p."
    )
    template: str = Field(description=f"The message, with {PLACE}.")

    @field_validator("answer")
    @classmethod
    def _check_answer(cls, answer: str) -> str:
        try:
            compiled = re.compile(answer, re.MULTILINE)
        except re.error as error:
            raise ValueError(f"expected a regular expression: {error}") from error
        if "score" not in compiled.groupindex:
            raise ValueError("expected a group (?P<score>…), which holds the score")
        return answer

    @field_validator("options")
    @classmethod
    def _check_options(cls, options: dict[str, Any]) -> dict[str, Any]:
        if own := sorted(_OWN_OPTIONS.intersection(options)):
            raise ValueError(f"expected no option of this name here: {', '.join(own)}, which the rubric or the command decides")
        return options

    @field_validator("template")
    @classmethod
    def _check_template(cls, template: str) -> str:
        if (num_places := template.count(PLACE)) != 1:
            raise ValueError(f"found {PLACE} {num_places} times, expected it once, where the document comes")
        return template

    @model_validator(mode="after")
    def _check_scale(self) -> Self:
        lowest, highest = self.scale
        if not lowest < highest:
            raise ValueError(f"scale: found [{lowest:g}, {highest:g}], expected the lower end first")
        if not self.decimals and not (lowest.is_integer() and highest.is_integer()):
            raise ValueError(f"scale: found [{lowest:g}, {highest:g}], expected whole numbers, or `decimals: true`")
        return self

    def messages(self, text: str) -> list[dict[str, str]]:
        before, _, after = self.template.partition(PLACE)
        message = {"role": "user", "content": f"{before}{text[: self.max_chars]}{after}"}
        return [{"role": "system", "content": self.system}, message] if self.system else [message]

    def request(self, model: str, text: str) -> dict[str, Any]:
        """The body of a request about one document. It holds all that decides the answer."""
        own = {"model": model, "messages": self.messages(text), "temperature": self.temperature, "max_tokens": self.max_tokens}
        return own | {"stream": False} | self.options

    def parse(self, answer: str) -> Score | str:
        """The score of an answer, or the reason why there is none."""
        if self.answer_after:
            answer = answer.rpartition(self.answer_after)[2]
        matches = list(re.finditer(self.answer, answer, re.MULTILINE))
        if len(matches) != 1:
            return "several_scores" if matches else "no_score"
        match = matches[0]
        number = (match["score"] or "").strip()
        if (_DECIMAL_NUMBER if self.decimals else _WHOLE_NUMBER).fullmatch(number) is None:
            return "not_a_number"
        value = float(number)
        if not self.scale[0] <= value <= self.scale[1]:
            return "off_scale"
        return Score(value=value, reason=(answer[: match.start()] + answer[match.end() :]).strip())


def read_rubric(path: str | Path) -> Rubric:
    """The rubric in a file. Raises UserError with file and line."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"--rubric {path}: cannot be read: {error.strerror}. Expected a file of text") from error
    except UnicodeDecodeError as error:
        raise UserError(f"--rubric {path}: found the byte 0x{error.object[error.start]:02x}, expected UTF-8") from error
    front, template, template_line = _parts(str(path), text)
    parsed = parse_yaml(front, str(path))
    if not isinstance(parsed.data, dict):
        raise UserError(f"{path}:1: the front matter has no keys. {_EXPECTED_SHAPE}")
    data = parsed.data | {"template": template}
    lines = {**parsed.lines, ("template",): template_line}
    origins = Origins(file=f"{path}:1", locations={key: f"{path}:{line}" for key, line in lines.items()})
    try:
        return Rubric.model_validate(data)
    except ValidationError as error:
        raise problems_error(error, Rubric, data, origins.where) from error


def _parts(name: str, text: str) -> tuple[str, str, int]:
    """Front matter, which begins with an empty line as in the file; the template, and its line."""
    lines = text.splitlines(keepends=True)
    fences = [number for number, line in enumerate(lines) if line.rstrip() == _FENCE]
    if len(fences) < 2 or fences[0] != 0:
        raise UserError(f"{name}:1: no front matter. {_EXPECTED_SHAPE}")
    end = fences[1]
    return "\n" + "".join(lines[1:end]), "".join(lines[end + 1 :]).strip("\n"), end + 2
