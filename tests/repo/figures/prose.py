"""Prose: words and shapes of docstrings and comments. Text in backticks is code and left out."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.repo.figures.measured import Measured, share
from tests.repo.sources import Repository, Source

DOCUMENTED = ("atroposlib", "example_trainer", "environments", "scripts", "benchmarks")
# Words that give a process a voice or leave the subject open, from the review of the prose
# (docs of peer projects: 0.0 to 0.9 per 1,000 words). The noun of the field replaces them.
LOOSE_WORDS = (
    "say says said tell tells told hear hears heard unheard speak speaks "
    "nobody somebody someone everybody anybody whoever whatever whichever "
    "goodbye patience beside worth shall"
).split()
LOOSE_PHRASES = [
    "another one",
    "as it stands",
    "for ever",
    "of its own",
    "of ours",
    "of their own",
    "one another",
    "so long as it answers",
]
LOOSE = re.compile(
    r"(?<![\w.\-/])(?:"
    + "|".join([*LOOSE_WORDS, *(phrase.replace(" ", r"\s+") for phrase in LOOSE_PHRASES)])
    + r")(?![\w(=])",
    re.IGNORECASE,
)
# Words that stand for a noun (docs of peer projects: 3 to 8 per 1,000 words).
PRONOUN = re.compile(r"\b(?:one|ones|those|others?|itself|them|such)\b", re.IGNORECASE)
OPENING = re.compile(
    r"(?:It|One|Those|Others?|They|This|As :|The same|What|Where|Who|Which)\b"
)
# A comment that begins in lower case with a word that only continues a sentence.
FRAGMENT = re.compile(
    r"(?:of|by|for|in|with|as|from|at|to|until|after|before|where|which|that|whose|without"
    r"|else|beside)\b"
)
DIRECTIVE = re.compile(r"!|noqa|type:|pragma|fmt:|ruff:|mypy:|pyright:|isort:|-\*-")
CODE = re.compile(r"``.*?``|`[^`\n]*`", re.DOTALL)
WORD = re.compile(r"[A-Za-z][\w'-]*")


def prose_of(source: Source) -> Iterator[tuple[int, str]]:
    """Docstrings and comments with their first line, without code."""
    for line, text in [*source.docstrings, *source.comments]:
        yield line, CODE.sub(" ", text)


def words_of(pattern: re.Pattern[str], repository: Repository, *tops: str) -> Measured:
    """Matches per 1,000 words of docstrings and comments below ``tops``."""
    words = 0
    items: list[str] = []
    for source in repository.under(*tops):
        for line, text in prose_of(source):
            words += len(WORD.findall(text))
            items += [f"{source.path}:{line}: {match}" for match in pattern.findall(text)]
    return share(items, words, 1000)


def loose_words(repository: Repository) -> Measured:
    """Words of LOOSE in the source."""
    return words_of(LOOSE, repository, *DOCUMENTED)


def loose_words_in_tests(repository: Repository) -> Measured:
    """Words of LOOSE in the tests."""
    return words_of(LOOSE, repository, "tests")


def pronouns(repository: Repository) -> Measured:
    """Words that stand for a noun, in the source."""
    return words_of(PRONOUN, repository, *DOCUMENTED)


def pronoun_openings(repository: Repository) -> Measured:
    """Percentage of docstrings that open with a pronoun or a relative."""
    docstrings = 0
    items: list[str] = []
    for source in repository.under(*DOCUMENTED):
        docstrings += len(source.docstrings)
        for line, text in source.docstrings:
            if OPENING.match(text):
                items.append(f"{source.path}:{line}: {text.splitlines()[0]}")
    return share(items, docstrings, 100)


def fragments(repository: Repository) -> Measured:
    """Percentage of comments that are a part of a sentence.

    Lines of one comment are read together; instructions to tools (``noqa``) are no comments.
    """
    comments = 0
    items: list[str] = []
    for source in repository.under(*DOCUMENTED):
        for line, text in source.comments:
            if text and not DIRECTIVE.match(text):
                comments += 1
                if FRAGMENT.match(text):
                    items.append(f"{source.path}:{line}: {text}")
    return share(items, comments, 100)
