"""Regular expressions: match all strings of a kind and no strings of another kind.

    python environments/library/regular_expressions.py serve

The prompt shows some strings. Hidden strings are tested as well, so a list of the shown
strings does not pass. A time limit stops catastrophic backtracking.
"""

import re

from atroposlib.environments.common.generated import SETTINGS, answer_in, distinct
from atroposlib.envs import environment
from atroposlib.envs.function_env.card import Card
from atroposlib.errors import ConfigError

try:
    import regex  # has a time limit
except ImportError:
    regex = None

VOWELS, CONSONANTS, DIGITS = "aeiou", "bcdfghjklmnpqrstvwxyz", "0123456789"
# A piece in words, as an expression, and its characters with their least and largest number.
PIECES = (
    ("one or more digits", "[0-9]+", DIGITS, 1, 4),
    ("exactly two digits", "[0-9]{2}", DIGITS, 2, 2),
    ("exactly three digits", "[0-9]{3}", DIGITS, 3, 3),
    ("two to four capital letters", "[A-Z]{2,4}", CONSONANTS.upper(), 2, 4),
    ("one capital letter", "[A-Z]", CONSONANTS.upper(), 1, 1),
    ("one or more small letters", "[a-z]+", CONSONANTS + VOWELS, 1, 5),
    ("one or more vowels", "[aeiou]+", VOWELS, 1, 3),
    ("a hyphen", "-", "-", 1, 1),
    ("a full stop", r"\.", ".", 1, 1),
    ("an optional underscore", "_?", "_", 0, 1),
    ("any number of the letter x", "x*", "x", 0, 3),
)
RULES = """\
Write a regular expression that matches the whole of every string of this form: {form}.

Strings that must match: {matching}
Strings that must not match: {others}

Put only the expression, in Python's syntax, into the tags <answer></answer>."""
SHOWN, MAX_CHARS, MATCH_WITHIN_S = 4, 120, 0.2
LARGE_COUNT = re.compile(r"\{[^}]*\d{3}")


def spell(rng, pieces):
    return "".join(
        "".join(rng.choice(letters) for _ in range(rng.randint(least, most)))
        for *_, letters, least, most in pieces
    )


def damage(rng, text, pieces):
    """``text`` after an edit, or another order of the pieces."""
    i = rng.randrange(len(text)) if text else 0
    extra = rng.choice(VOWELS + DIGITS + "XYZ-._")
    edits = [
        text[:i] + text[i + 1 :],
        text[:i] + extra + text[i:],
        text[:i] + extra + text[i + 1 :],
    ]
    return rng.choice([*edits, spell(rng, rng.sample(pieces, len(pieces)))])


def make(rng):
    pieces = rng.sample(PIECES, rng.randint(3, 5))
    pattern = "".join(piece[1] for piece in pieces)
    yes = sorted({spell(rng, pieces) for _ in range(40)})
    edited = {damage(rng, rng.choice(yes), pieces) for _ in range(60)}
    no = sorted(text for text in edited if not re.fullmatch(pattern, text))
    if min(len(yes), len(no)) < 4 * SHOWN:
        return None
    yes, no = rng.sample(yes, 4 * SHOWN), rng.sample(no, 4 * SHOWN)
    question = RULES.format(
        form=", then ".join(piece[0] for piece in pieces),
        matching=", ".join(map(repr, yes[:SHOWN])),
        others=", ".join(map(repr, no[:SHOWN])),
    )
    return {"question": question, "yes": yes, "no": no, "pattern": pattern}


def tasks(config):
    if regex is None:
        raise ConfigError("needs regex: pip install 'atropos-rl[examples]'")
    return distinct(make, config.tasks, config.seed)


def separates(task, answer):
    """1 if the expression matches every string of ``yes`` and none of ``no``."""
    pattern = answer_in(answer)
    if not pattern or len(pattern) > MAX_CHARS or LARGE_COUNT.search(pattern):
        return 0.0
    try:
        compiled = regex.compile(pattern)
        matches = [
            bool(compiled.fullmatch(text, timeout=MATCH_WITHIN_S))
            for text in (*task["yes"], *task["no"])
        ]
    except (regex.error, TimeoutError, ValueError, OverflowError, RecursionError):
        return 0.0
    return float(matches == [True] * len(task["yes"]) + [False] * len(task["no"]))


CARD = Card(
    "code",
    data="made on the spot",
    licence="MIT",
    gold=lambda task: f"<answer>{task['pattern']}</answer>",
    extras="atropos-rl[examples]",
)


@environment(
    tasks, rewards=separates, settings=SETTINGS, card=CARD, group_size=8, max_tokens=256
)
async def regular_expressions(task, model):
    return await model.chat(task["question"])


if __name__ == "__main__":
    regular_expressions.cli()
