"""Where a document of each class may be cut into a prompt and its natural continuation."""

import re
from collections.abc import Callable

from experiments.pair.data.chat import ASSISTANT
from experiments.pair.data.render import RULE_LINE

Spans = list[tuple[int, int]]

_RECORD_END = re.compile(r"\},[^\S\n]*(?=\n|\{|\s)")
_CODE_START = re.compile(
    r"(?:(?<=\n\n)|\A)(?=@|def |class |async def |function |export |pub |fn |impl |static |import |from )"
)
_CODE_CUT = re.compile(
    r"^[ \t]*(?:async def|def|class|function|export|pub|fn|static)\b[^\n]*(?:\n[^\n]*){0,3}?[:{]$"  # a signature
    r"|^[ \t]+(?:\"\"\"[^\n]*)?\"\"\"$"  # a docstring
    r"|^[ \t]+(?:if|for|while|with|try|else|elif|match|switch)\b[^\n]*[:{]$",  # inside a function
    re.M,
)


def json_spans(text: str) -> Spans:
    """From the start to the end of a record, after at least two complete records and before at least two more."""
    ends = [match.end() for match in _RECORD_END.finditer(text)]
    return [(0, end) for end in ends[1:-2]]


def table_spans(text: str) -> Spans:
    """From the start to the end of a table row, after at least two rows and before at least two more."""
    lines = text.split("\n")
    rule = next((index for index, line in enumerate(lines) if RULE_LINE.fullmatch(line)), len(lines))
    spans, position = [], sum(len(line) + 1 for line in lines[: rule + 1])
    for line in lines[rule + 1 :]:
        if "|" not in line:
            break
        position += len(line) + 1
        spans.append((0, position - 1))  # the line break is the continuation's: after it another class could follow
    return spans[1:-2]


def code_spans(text: str) -> Spans:
    """From the start of a top-level definition to a signature, a docstring or the opening of a block inside it."""
    starts = [match.start() for match in _CODE_START.finditer(text)]
    cuts = [match.end() for match in _CODE_CUT.finditer(text)]
    return [(start, cut) for start in starts for cut in cuts if 150 <= cut - start <= 1200]


def prose_spans(text: str) -> Spans:
    """From the start of a paragraph to a word end that is at least 60 characters from any paragraph's end."""
    starts = [0] + [match.end() for match in re.finditer(r"\n\n", text)]
    spans = []
    for start in starts[:4]:
        for match in re.finditer(r"(?<=[a-z,])(?= [a-z])", text[start : start + 1400]):
            cut = start + match.start()
            if "\n" not in text[cut - 60 : cut + 60]:
                spans.append((start, cut))
    return spans


def chat_spans(text: str) -> Spans:
    """The question, up to where the answer begins."""
    return [(0, text.index(ASSISTANT) + len(ASSISTANT))]


SPANS: dict[str, Callable[[str], Spans]] = {
    "json_repetitive": json_spans,
    "md_table": table_spans,
    "code_gen": code_spans,
    "prose": prose_spans,
    "chat": chat_spans,
}
