"""All texts for administrators are plain English: messages, help, pages, manuals. tests/phrases.txt lists forbidden phrases.

An administrator reads a message at night, often in a foreign language: a sentence that has to be read twice causes mistakes.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator

import pytest

from tests.beds import TOP
from tests.test_structure import tracked_files

PRODUCT = ("backupd", "btrkeep", "web", "heatmap", "balancer")
PROSE = (".rst", ".html", ".1", ".5", ".8")
LONGEST = 30  # words of a sentence


def _rules(text: str) -> list[tuple[re.Pattern[str], str]]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    pairs = [re.split(r" {2,}", line, maxsplit=1) for line in lines]
    return [(re.compile(pattern, re.IGNORECASE), advice) for pattern, advice in pairs]


EVERYWHERE, IN_MESSAGES, IN_DOCSTRINGS = map(
    _rules, re.split(r"\n\[(?:messages|docstrings)\]\n", (TOP / "tests" / "phrases.txt").read_text(encoding="utf-8"))
)
# Not prose: a user name, an error code in JSON, templates.
NAMES = re.compile(r"\buser nobody\b|class=\"[^\"]*\"|nobody-backs-up|\{%.*?%\}|\{#.*?#\}|\{\{.*?\}\}", re.DOTALL)


def faults(text: str, *, is_message: bool = True) -> list[str]:
    plain = " ".join(NAMES.sub(" ", text).split())
    return [
        f"{plain[max(0, match.start() - 60) : match.end() + 60]}: {advice}"
        for rule, advice in (EVERYWHERE + IN_MESSAGES if is_message else EVERYWHERE)
        if (match := rule.search(plain))
    ]


def long_sentences(text: str) -> list[str]:
    """Returns the sentences of more than LONGEST words. Tables and examples of help (paragraphs with a backspace), SQL and HTML
    have none.
    """
    if re.match(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH|CREATE)\b", text) or re.search(r"</|:root\{|\(\?:", text):
        return []
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n|\n(?=#)", text) if "\b" not in part]
    sentences = [each for part in paragraphs for each in re.split(r"(?<=[.?!;])\s", part)]
    return [each for each in sentences if len(re.findall(r"[A-Za-z][\w'-]*", each)) > LONGEST]


def strings(source: str) -> Iterator[str]:
    """Yields the messages and help in a module: strings with a space, without docstrings other than those of commands."""
    tree = ast.parse(source)
    left_out = set[ast.AST]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            is_help = not isinstance(node, ast.Module) and any(
                "command" in ast.unparse(each) or "group" in ast.unparse(each) for each in node.decorator_list
            )
            docs = [part.value for part in node.body if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)]
            left_out.update(docs[1:] if is_help else docs)
        if isinstance(node, ast.JoinedStr):
            left_out.update(node.values)
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value and node not in left_out:
            yield node.value


def docstrings(source: str) -> Iterator[str]:
    """Yields the docstrings of a module, including the texts below fields and constants."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            values = [part.value for part in node.body if isinstance(part, ast.Expr)]
            yield from (value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str))


def comments(source: str) -> Iterator[str]:
    """Yields the comments of a module."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


@pytest.mark.slow
def test_no_docstring_or_comment_has_a_phrase_that_has_to_be_read_twice() -> None:
    wrong = {}
    for path in tracked_files():
        if path.parts[0] in PRODUCT and path.suffix == ".py":
            source = (TOP / path).read_text(encoding="utf-8")
            texts = [*(" ".join(text.split()) for text in docstrings(source)), *comments(source)]
            faults_here = [f"{text[:120]}: {advice}" for text in texts for rule, advice in IN_DOCSTRINGS if rule.search(text)]
            if faults_here:
                wrong[str(path)] = faults_here
    assert not wrong


@pytest.mark.slow
def test_no_message_help_or_page_has_a_phrase_that_has_to_be_read_twice() -> None:
    wrong = {}
    for path in tracked_files():
        is_message = path.parts[0] in PRODUCT
        if is_message and path.suffix == ".py":
            texts = list(strings((TOP / path).read_text(encoding="utf-8")))
        elif path.suffix in PROSE and path.parts[:2] != ("docs", "decisions") and path.parts[0] != "tests":
            texts = [(TOP / path).read_text(encoding="utf-8")]
        else:
            continue
        broken_rules = [fault for text in texts for fault in faults(text, is_message=is_message)]
        if is_message and path.suffix == ".py":
            broken_rules += [f"{LONGEST} words at most: {each}" for text in texts for each in long_sentences(text)]
        if broken_rules:
            wrong[str(path)] = broken_rules
    assert wrong == {}


def test_a_long_sentence_is_found_and_two_short_ones_or_a_table_are_not() -> None:
    words = " ".join(["word"] * LONGEST)
    assert long_sentences(f"{words} more.") == [f"{words} more."]
    assert long_sentences(f"{words}. {words}; {words}.\n\n\b\n{words} more.") == []


def test_phrases_are_found_in_messages_and_help_and_not_in_other_docstrings() -> None:
    source = '''
@click.command()
def run():
    """Begins anew."""
    raise Error(f"{name} is held by somebody", "x")

def other():
    """Begins anew."""
'''
    assert sorted(strings(source)) == ["Begins anew.", "X is held by somebody"]
    assert list(comments(f"{source}    pass  # which stays")) == ["# which stays"]
    assert faults("Begins\n  anew.") == ["Begins anew.: again, from the start"]
    assert faults("a file of the user nobody") == []
