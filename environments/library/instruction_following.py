"""Instruction following: a short text under two to four conditions on its form.

    python environments/library/instruction_following.py serve

The score is 1 if all conditions hold; ``--env.reward_weights '{"share": 1, "all": 0}'`` gives
the share of conditions instead. A task is kept only if a known text meets its conditions,
while the prompt and plain noise do not.
"""

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from atroposlib.environments.common import instructions as form
from atroposlib.environments.common.generated import SETTINGS, tasks_of
from atroposlib.envs import environment
from atroposlib.envs.function_env.card import Card

TOPICS = (
    "a river",
    "the winter",
    "an old clock",
    "a night train",
    "bread",
    "the moon",
    "a garden",
)
KEYWORDS = tuple(
    "amber basket copper dragon engine feather granite harbour island jacket kettle lantern "
    "meadow needle orchard pebble quarry ribbon saddle timber umbrella velvet walnut zipper".split()
)
FILLER = "quiet morning light came over every small stone while people walked home".split()
NOISE = ("7" * 40, "yes", " ".join(FILLER), "A, b. C!\n\n- d\n- e")
_FILLED = re.compile(rf"\b(?:{'|'.join(FILLER)})\b")


class Condition(NamedTuple):
    """Request with {n}, {w} and {v}; its check; how a known text is changed to meet it."""

    request: str
    holds: Callable[..., bool]  # text, n, w, v
    meet: Callable[..., str]


def put(text: str, *tokens: str) -> str:
    """The tokens in place of words of the filler."""
    left = list(tokens)
    return _FILLED.sub(lambda match: left.pop(0) if left else match[0], text)


def filler(n: int, per: int = 12) -> list[str]:
    """``n`` pieces of filler, the first letter in upper case."""
    whole = [FILLER[i % len(FILLER)] for i in range(n * per)]
    return [" ".join(whole[i * per : (i + 1) * per]).capitalize() for i in range(n)]


def number_lines(text: str) -> list[str]:
    return [line.split()[0] for line in form.lines(text)]


def strings(text: str) -> int | None:
    """Length of a JSON list of texts."""
    parsed = form.parsed_json(text)
    whole = isinstance(parsed, list) and all(isinstance(item, str) for item in parsed)
    return len(parsed) if whole else None


# By aspect, in the order in which a known text is changed; a task has at most one condition of
# each aspect.
LAYOUT = (
    Condition(
        "Write exactly {n} sentences.",
        lambda t, n, **_: len(form.sentences(t)) == n,
        lambda t, n, **_: " ".join(f"{word}." for word in filler(n)),
    ),
    Condition(
        "Write exactly {n} lines.",
        lambda t, n, **_: len(form.lines(t)) == n,
        lambda t, n, **_: "\n".join(filler(n)),
    ),
    Condition(
        "Write exactly {n} paragraphs, with an empty line between them.",
        lambda t, n, **_: len(form.paragraphs(t)) == n,
        lambda t, n, **_: "\n\n".join(filler(n)),
    ),
    Condition(
        "Write a list of exactly {n} points, each a line that begins with '- ', and no other line.",
        lambda t, n, **_: len(form.bullets(t)) == len(form.lines(t)) == n,
        lambda t, n, **_: "\n".join(f"- {word}" for word in filler(n)),
    ),
    Condition(
        "Number {n} lines with '1.', '2.' and so on, and write no other line.",
        lambda t, n, **_: number_lines(t) == [f"{i}." for i in range(1, n + 1)],
        lambda t, n, **_: "\n".join(f"{i}. {word}" for i, word in enumerate(filler(n), 1)),
    ),
    Condition(
        "Reply with a JSON list of exactly {n} strings, and nothing else.",
        lambda t, n, **_: strings(t) == n,
        lambda t, n, **_: json.dumps(filler(n)),
    ),
    Condition(
        "Write exactly {n} parts, with a line of three stars, ***, between them.",
        lambda t, n, **_: form.has_dividers(t, n),
        lambda t, n, **_: "\n***\n".join(filler(n)),
    ),
    Condition(
        "Write exactly {n} sections, each headed by a line 'PART' with its number.",
        lambda t, n, **_: (
            re.findall(r"(?m)^PART (\d+)$", t) == [f"{i}" for i in range(1, n + 1)]
        ),
        lambda t, n, **_: "\n".join(
            f"PART {i}\n{word}" for i, word in enumerate(filler(n), 1)
        ),
    ),
)
KEYWORD = (
    Condition(
        "Use the words {w} and {v}.",
        lambda t, w, v, **_: form.occurrences(t, w) > 0 < form.occurrences(t, v),
        lambda t, w, v, **_: put(t, w, v),
    ),
    Condition(
        "Use the word {w} exactly {n} times.",
        lambda t, n, w, **_: form.occurrences(t, w) == n,
        lambda t, n, w, **_: put(t, *[w] * n),
    ),
    Condition(
        "Use the word {w} before the word {v}, and each of them once.",
        lambda t, w, v, **_: (
            form.occurrences(t, w) == form.occurrences(t, v) == 1
            and t.lower().index(w) < t.lower().index(v)
        ),
        lambda t, w, v, **_: put(t, w, v),
    ),
    Condition(
        "Use the word {w} in every line.",
        lambda t, w, **_: (
            bool(form.lines(t)) and all(form.occurrences(line, w) for line in form.lines(t))
        ),
        lambda t, w, **_: "\n".join(put(line, w) for line in t.split("\n")),
    ),
)
COUNT = (
    Condition(
        "Write at least {n}0 words.",
        lambda t, n, **_: len(form.words(t)) >= 10 * n,
        lambda t, n, **_: put(t, *[" ".join(FILLER)] * n),
    ),
    Condition(
        "Write fewer than {n}0 words.",
        lambda t, n, **_: len(form.words(t)) < 10 * n,
        lambda t, **_: t,
    ),
    Condition(
        "Write exactly {n} numbers, in digits.",
        lambda t, n, **_: len(re.findall(r"\d+", t)) == n,
        lambda t, n, **_: put(t, *(str(i) for i in range(11, 11 + n))),
    ),
    Condition(
        "Write exactly {n} placeholders in square brackets, such as [address].",
        lambda t, n, **_: len(form.placeholders(t)) == n,
        lambda t, n, **_: put(t, *["[name]"] * n),
    ),
    Condition(
        "Highlight exactly {n} phrases with stars, as *this one*.",
        lambda t, n, **_: len(form.highlights(t)) == n,
        lambda t, n, **_: put(t, *["*bright*"] * n),
    ),
    Condition(
        "Write exactly {n} words in capital letters.",
        lambda t, n, **_: len(form.capital_words(t)) == n,
        lambda t, n, **_: put(t, *["LOUD"] * n),
    ),
    Condition(
        "Use the letter z at least {n} times.",
        lambda t, n, **_: form.letters(t, "z") >= n,
        lambda t, n, **_: put(t, *["zigzag"] * n),
    ),
    Condition(
        "Ask exactly {n} questions.",
        lambda t, n, **_: t.count("?") == n,
        lambda t, n, **_: put(t, *["really?"] * n),
    ),
)
EDGE = (
    Condition(
        "Begin with the words 'Dear {v}'.",
        lambda t, v, **_: form.begins_with(t, f"Dear {v}"),
        lambda t, v, **_: f"Dear {v} {t}",
    ),
    Condition(
        "End with the words 'and so to {v}'.",
        lambda t, v, **_: form.ends_with(t, f"and so to {v}"),
        lambda t, v, **_: f"{t} and so to {v}",
    ),
    Condition(
        "Put the whole reply in double quotation marks.",
        lambda t, **_: form.is_quoted(t),
        lambda t, **_: f'"{t}"',
    ),
    Condition(
        "Give it a title in double angle brackets, such as <<title>>.",
        lambda t, **_: form.has_title(t),
        lambda t, **_: put(t, "<<quiet>>"),
    ),
    Condition(
        "Add a postscript in the last line, which begins with P.S.",
        lambda t, **_: bool(form.lines(t)) and form.postscript(form.lines(t)[-1], "P.S."),
        lambda t, **_: f"{t}\nP.S. stone",
    ),
)
BAN = (
    Condition("Use no comma.", lambda t, **_: "," not in t, lambda t, **_: t.replace(",", "")),
    Condition(
        "Use no full stop.", lambda t, **_: "." not in t, lambda t, **_: t.replace(".", "")
    ),
    Condition(
        "Do not use the words the, and, of.",
        lambda t, **_: not any(form.occurrences(t, w) for w in ("the", "and", "of")),
        lambda t, **_: t,
    ),
    Condition(
        "Do not use the letter q.",
        lambda t, **_: form.letters(t, "q") == 0,
        lambda t, **_: t.replace("quiet", "still").replace("Quiet", "Still"),
    ),
)
CASE = (
    Condition("Use only small letters.", lambda t, **_: t.islower(), lambda t, **_: t.lower()),
    Condition(
        "Use only capital letters.", lambda t, **_: t.isupper(), lambda t, **_: t.upper()
    ),
    Condition(
        "Begin every word with a capital letter.",
        lambda t, **_: all(w[0].isupper() or w[0].isdigit() for w in form.words(t)),
        lambda t, **_: re.sub(
            r"[^\W\d_]+", lambda match: match[0][0].upper() + match[0][1:], t
        ),
    ),
)
ASPECTS = (LAYOUT, KEYWORD, COUNT, EDGE, BAN, CASE)


def hold(task: dict[str, Any], text: str) -> list[bool]:
    """For each condition of a task whether it holds; False for a text without a word."""
    some = bool(form.words(text))
    chosen = [ASPECTS[aspect][i] for aspect, i in task["conditions"]]
    return [some and bool(rule.holds(text, **task["values"])) for rule in chosen]


def known_text(task: dict[str, Any]) -> str:
    text = "\n".join(filler(3))
    for aspect, i in task["conditions"]:
        text = ASPECTS[aspect][i].meet(text, **task["values"])
    return text


def make(rng):
    w, v = rng.sample(KEYWORDS, 2)
    values = {"n": rng.randint(2, 5), "w": w, "v": v}
    aspects = [aspect for aspect in range(len(ASPECTS)) if ASPECTS[aspect] is not KEYWORD]
    # A keyword in every task: an answer to one task is no answer to another.
    chosen = sorted([ASPECTS.index(KEYWORD), *rng.sample(aspects, rng.randint(1, 3))])
    conditions = [[aspect, rng.randrange(len(ASPECTS[aspect]))] for aspect in chosen]
    requests = [ASPECTS[aspect][i].request.format(**values) for aspect, i in conditions]
    listed = "\n".join(f"- {request}" for request in requests)
    question = f"Write a short text about {rng.choice(TOPICS)}.\n{listed}"
    task = {"question": question, "conditions": conditions, "values": values}
    if not all(hold(task, known_text(task))):
        return None  # two of the conditions contradict each other
    return None if any(all(hold(task, text)) for text in (*NOISE, question)) else task


CARD = Card("instructions", data="made on the spot", licence="MIT", gold=known_text)


@environment(
    tasks_of(make),
    rewards={"all": 1.0, "share": 0.0},
    settings=SETTINGS,
    card=CARD,
    group_size=8,
    max_tokens=256,
)
async def instruction_following(task, model):
    held = hold(task, str(await model.chat(task["question"])))
    return {"all": all(held), "share": sum(held) / len(held)}


if __name__ == "__main__":
    instruction_following.cli()
