"""Checks of instructions about the form of a text, and IFEval's names of the checks. Pure."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Arguments = Mapping[str, Any]
_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")


def words(text: str) -> list[str]:
    return _WORD.findall(text)


def sentences(text: str) -> list[str]:
    """Parts that end with . ! or ? before white space; abbreviations end a part too."""
    return [part for part in re.split(r"(?<=[.!?])\s+", text.strip()) if words(part)]


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def paragraphs(text: str) -> list[str]:
    return [part for part in re.split(r"\n\s*\n", text.strip()) if part.strip()]


def parts(text: str, mark: str) -> list[str] | None:
    """Parts between lines or words ``mark``; None if a part between two marks is empty."""
    pieces = re.split(rf"\s?{re.escape(mark)}\s?", text.strip())
    inner = [part for i, part in enumerate(pieces) if part.strip() or 0 < i < len(pieces) - 1]
    return inner if all(part.strip() for part in inner) else None


def bullets(text: str) -> list[str]:
    return [line for line in lines(text) if re.match(r"\s*(?:-|\*(?!\*)|•)\s*\S", line)]


def occurrences(text: str, word: str) -> int:
    return len(re.findall(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE))


def letters(text: str, letter: str) -> int:
    return text.lower().count(letter.lower())


def capital_words(text: str) -> list[str]:
    return [word for word in words(text) if word.isupper()]


def placeholders(text: str) -> list[str]:
    return re.findall(r"\[[^\[\]\n]+\]", text)


def highlights(text: str) -> list[str]:
    """Texts between single or double stars, on a single line."""
    pairs = re.findall(r"\*\*([^\n*]+)\*\*|(?<!\*)\*([^\n*]+)\*(?!\*)", text)
    return [a or b for a, b in pairs if (a or b).strip()]


def has_title(text: str) -> bool:
    return any(title.strip() for title in re.findall(r"<<([^<>\n]+)>>", text))


def is_quoted(text: str) -> bool:
    inner = text.strip()
    return len(inner) > 2 and inner[0] == inner[-1] == '"'


def parsed_json(text: str) -> Any:
    """The value of a reply that is JSON, in a fence or not; None if it is no JSON."""
    fenced = re.fullmatch(r"\s*```(?:json|JSON|Json)?\s*\n(.*?)\n?\s*```\s*", text, re.DOTALL)
    try:
        return json.loads(fenced[1] if fenced else text)
    except (ValueError, RecursionError):
        return None


def ends_with(text: str, phrase: str) -> bool:
    return text.strip().strip('"').lower().endswith(phrase.strip().lower())


def begins_with(text: str, phrase: str) -> bool:
    return text.strip().lower().startswith(phrase.strip().lower())


def first_word(text: str) -> str:
    return next(iter(words(text)), "").lower()


def postscript(text: str, mark: str) -> bool:
    """Whether a line begins with the mark, for example P.S. or P.P.S, and goes on."""
    spaced = r"\s?".join(re.escape(part) + r"\.?" for part in mark.strip(".").split("."))
    return bool(re.search(rf"(?im)^\W*{spaced}\s*\S", text))


# --- IFEval -------------------------------------------------------------------------------


def holds_relation(count: int, relation: str, bound: int) -> bool:
    return count < bound if relation == "less than" else count >= bound


def two_responses(text: str) -> bool:
    responses = [part.strip() for part in text.split("******") if part.strip()]
    return len(responses) == 2 and responses[0] != responses[1]


def nth_paragraph(text: str, a: Arguments) -> bool:
    texts, n = paragraphs(text), a["nth_paragraph"]
    whole = len(texts) == a["num_paragraphs"] and 0 < n <= len(texts)
    return whole and first_word(texts[n - 1]) == a["first_word"].lower()


def has_dividers(text: str, count: int) -> bool:
    pieces = parts(text, "***")
    return pieces is not None and len(pieces) == count


OPTIONS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
# Zhou et al. (2023), arXiv 2311.07911, table 1: instruction -> (text, arguments) -> followed;
# None: unknown. Sentences are split at their marks, not by a trained model.
IFEVAL: dict[str, Callable[[str, Arguments], bool | None]] = {
    "keywords:existence": lambda t, a: all(occurrences(t, k) for k in a["keywords"]),
    "keywords:frequency": lambda t, a: holds_relation(
        occurrences(t, a["keyword"]), a["relation"], a["frequency"]
    ),
    "keywords:forbidden_words": lambda t, a: (
        not any(occurrences(t, k) for k in a["forbidden_words"])
    ),
    "keywords:letter_frequency": lambda t, a: holds_relation(
        letters(t, a["letter"]), a["let_relation"], a["let_frequency"]
    ),
    "language:response_language": lambda t, a: None,  # needs a trained model of languages
    "length_constraints:number_sentences": lambda t, a: holds_relation(
        len(sentences(t)), a["relation"], a["num_sentences"]
    ),
    "length_constraints:number_paragraphs": lambda t, a: has_dividers(t, a["num_paragraphs"]),
    "length_constraints:number_words": lambda t, a: holds_relation(
        len(words(t)), a["relation"], a["num_words"]
    ),
    "length_constraints:nth_paragraph_first_word": nth_paragraph,
    "detectable_content:number_placeholders": lambda t, a: (
        len(placeholders(t)) >= a["num_placeholders"]
    ),
    "detectable_content:postscript": lambda t, a: postscript(t, a["postscript_marker"]),
    "detectable_format:number_bullet_lists": lambda t, a: len(bullets(t)) == a["num_bullets"],
    "detectable_format:constrained_response": lambda t, a: any(
        option in t for option in OPTIONS
    ),
    "detectable_format:number_highlighted_sections": lambda t, a: (
        len(highlights(t)) >= a["num_highlights"]
    ),
    "detectable_format:multiple_sections": lambda t, a: (
        len(re.findall(rf"(?m){re.escape(a['section_spliter'])}\s?\d+", t))
        >= a["num_sections"]
    ),
    "detectable_format:json_format": lambda t, a: parsed_json(t) is not None,
    "detectable_format:title": lambda t, a: has_title(t),
    "combination:two_responses": lambda t, a: two_responses(t),
    "combination:repeat_prompt": lambda t, a: begins_with(t, a["prompt_to_repeat"]),
    "startend:end_checker": lambda t, a: ends_with(t, a["end_phrase"]),
    "startend:quotation": lambda t, a: is_quoted(t),
    "change_case:capital_word_frequency": lambda t, a: holds_relation(
        len(capital_words(t)), a["capital_relation"], a["capital_frequency"]
    ),
    "change_case:english_capital": lambda t, a: t.isupper(),
    "change_case:english_lowercase": lambda t, a: t.islower(),
    "punctuation:no_comma": lambda t, a: "," not in t,
}


def loose_variants(text: str) -> Iterator[str]:
    """The text, and without its first line, its last line, both, and stars."""
    rows = text.split("\n")
    for kept in (rows, rows[1:], rows[:-1], rows[1:-1]):
        for variant in ("\n".join(kept), "\n".join(kept).replace("*", "")):
            yield variant.strip()


def follow_verdicts(
    text: str, instructions: list[tuple[str, Arguments]], *, loose: bool = False
) -> list[bool | None]:
    """For each IFEval instruction whether ``text`` follows it; ``loose``: whether a variant does.

    An empty text follows no instruction. Raises KeyError: an instruction or an argument is not
    IFEval's.
    """
    results: list[bool | None] = []
    for name, arguments in instructions:
        variants = [
            variant
            for variant in (loose_variants(text) if loose else [text])
            if variant.strip()
        ]
        verdicts = [IFEVAL[name](variant, arguments) for variant in variants]
        results.append(None if verdicts and None in verdicts else any(verdicts))
    return results
