"""Hypothesis strategies for scored groups and for bodies that are almost one."""

from __future__ import annotations

import json

from hypothesis import strategies as st

TOKEN = st.integers(0, 2**31 - 1) | st.integers(0, 300)
LABEL = st.integers(-(2**31), 2**31 - 1) | st.just(-100)
FLOAT = st.floats(allow_nan=False, allow_infinity=False) | st.floats(-5, 1, width=32)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ["[", "]]", '"', "\\", "a\\u005b", "\u005b{", "é[", "{}", '\\"', "\n", "😀"]
)
PLAIN = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | FLOAT | TEXT
VALUE = st.recursive(
    PLAIN,
    lambda one: st.lists(one, max_size=3) | st.dictionaries(TEXT, one, max_size=3),
    max_leaves=6,
)
DICT = st.dictionaries(TEXT, VALUE, max_size=2)
MESSAGE = st.builds(
    lambda more, role, content: more | {"role": role, "content": content}, DICT, TEXT, VALUE
)


def span_of(length):
    """A span of a row of ``length`` tokens, with or without its optional members."""
    return st.builds(
        lambda ends, temperature, more: (
            {"start": min(ends), "end": max(ends), "temperature": temperature} | more
        ),
        st.tuples(st.integers(0, length), st.integers(0, length)),
        st.floats(0, 2),
        st.fixed_dictionaries(
            {},
            optional={
                "top_p": st.floats(0, 1),
                "top_k": st.integers(-1, 50),
                "logprobs": st.sampled_from(["raw", "scaled", "truncated"]),
                "finish_reason": TEXT,
            },
        ),
    )


OUTCOMES = ("ok", "truncated", "env_error", "judge_error", "infra_error", "timeout")


@st.composite
def groups(draw, floats=FLOAT):
    """A dict that is a valid group, with any of the optional members."""
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))

    def rows(value):
        return [draw(st.lists(value, min_size=n, max_size=n)) for n in lengths]

    def each(value):
        return draw(st.lists(value, min_size=len(lengths), max_size=len(lengths)))

    tokens = rows(TOKEN)
    group = {
        "tokens": tokens,
        "masks": draw(
            st.sampled_from([tokens, [[-100] * n for n in lengths]])
            | st.builds(rows, st.just(LABEL))
        ),
        "scores": each(FLOAT | st.integers(-(2**70), 2**70)),
    }
    counts = [draw(st.integers(0, 2)) for _ in range(sum(lengths))]
    if draw(st.booleans()):
        counts = [counts[0]] * len(counts)

    def choices(value):
        left = iter(counts)
        return [[each_of(value, next(left)) for _ in range(n)] for n in lengths]

    def each_of(value, n):
        return draw(st.lists(value, min_size=n, max_size=n))

    optional = {
        "advantages": lambda: (
            draw(st.lists(st.lists(floats, max_size=3), max_size=3))
            if draw(st.booleans())
            else rows(floats)
        ),
        "ref_logprobs": lambda: rows(floats),
        "inference_logprobs": lambda: rows(floats.map(lambda x: min(x, 0.0))),
        "versions": lambda: rows(st.integers(-1, 2**31 - 1)),
        "distill_token_ids": lambda: choices(TOKEN),
        "distill_logprobs": lambda: choices(floats),
        "messages": lambda: each(st.lists(MESSAGE, max_size=2)),
        "generation_params": lambda: draw(DICT),
        "overrides": lambda: each(DICT),
        "group_overrides": lambda: draw(DICT | st.just({"group_size": 3})),
        "images": lambda: draw(VALUE),
        "env_id": lambda: draw(st.integers(-5, 10**17)),
        "sampling": lambda: [draw(st.lists(span_of(len(row)), max_size=1)) for row in tokens],
        "finish_reasons": lambda: each(st.none() | TEXT),
        "outcomes": lambda: each(st.sampled_from(OUTCOMES)),
        "group_id": lambda: draw(TEXT),
        "idempotency_key": lambda: draw(TEXT),
        "metadata": lambda: draw(DICT),
        "marks": lambda: draw(st.lists(TEXT, max_size=1)),
    }
    for name in draw(st.lists(st.sampled_from(sorted(optional)), unique=True)):
        group[name] = draw(st.none()) if draw(st.integers(0, 7)) == 0 else optional[name]()
    return group


def bodies(group):
    """The group as JSON in one of the ways in which people write it."""
    return st.builds(
        lambda ascii_only, indent, around: (
            around + json.dumps(group, ensure_ascii=ascii_only, indent=indent) + around
        ).encode(),
        st.booleans(),
        st.sampled_from([None, 1]),
        st.sampled_from(["", " ", "\n\t\r "]),
    )


PIECES = [
    b"[", b"]", b"{", b"}", b",", b":", b'"', b"\\", b"0", b"-", b".5", b"1.0", b"1e999",
    b"NaN", b"Infinity", b"null", b"true", b"[]", b"[4]", b"{}", b'"x"', b"\\u005b",
    b"\\ud800", b"\xff", b"\xef\xbb\xbf", b"\x00", b" ", b"99999999999999999999", b"-0",
    b"2147483648", b"9223372036854775808", b',"tokens":[[1]]', b'"masks":null,', b',"x":[1]',
]  # fmt: skip


@st.composite
def broken(draw, body):
    """The body with a few bytes cut out, put in or copied elsewhere."""
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(body)))
        end = min(len(body), start + draw(st.integers(0, 6)))
        piece = draw(st.sampled_from(PIECES) | st.just(body[start : start + 9]) | st.just(b""))
        body = body[:start] + piece + body[end:]
    return body


@st.composite
def misshapen(draw, group):
    """The group with one value inside it replaced by another kind of value."""
    group = json.loads(json.dumps(group))
    holder, keys = group, []
    while True:
        places = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        if not places:
            break
        key = draw(st.sampled_from(places))
        keys.append((holder, key))
        if not isinstance(holder[key], (dict, list)) or draw(st.booleans()):
            break
        holder = holder[key]
    if keys:
        holder, key = keys[-1]
        old = holder[key]
        holder[key] = draw(
            VALUE | st.sampled_from([[old], [[old]], [], {}, 2**31, 2**64, 1.0, 1.5, True])
        )
    return group
