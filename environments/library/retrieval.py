"""Retrieval: questions over an invented encyclopaedia, with tools that search and read it.

    python environments/library/retrieval.py serve

Each answer needs two to three entries, and no model can know it. The score is 1 for the right
answer. Another seed is another encyclopaedia.
"""

import math
import random
import re
from collections import Counter
from functools import cache

from atroposlib.environments.common.generated import (
    SETTINGS,
    TAGS,
    answer_in,
    distinct,
    tool_call,
)
from atroposlib.envs import environment
from atroposlib.envs.function_env.card import Card

TOWNS, RIVERS, PEOPLE, FOUND, MAX_TURNS = 80, 24, 120, 4, 10
BEGIN = (
    "bar",
    "cor",
    "del",
    "fen",
    "gal",
    "hol",
    "kar",
    "lin",
    "mor",
    "nev",
    "pel",
    "ros",
    "tam",
)
MIDDLE = ("a", "e", "i", "o", "u", "ande", "esto", "ira", "umbe")
END = ("bry", "dale", "fort", "gate", "ham", "la", "mere", "nia", "rus", "stead", "ton", "vik")
THINGS = "lamp loom pump clock plough kiln press lens anchor saddle whistle stove crane pulley".split()
KINDS = (
    "silent folding double tidal copper winged hollow rotary striped northern salted".split()
)
HOW = (
    "Use the tools: search finds entries of the encyclopaedia, read shows one. "
    f"Give the number alone. {TAGS}"
)


def names(rng, count):
    taken = {}
    while len(taken) < count:
        taken[(rng.choice(BEGIN) + rng.choice(MIDDLE) + rng.choice(END)).capitalize()] = None
    return list(taken)


@cache
def encyclopaedia(seed):
    """Entries by title, and facts: rivers (km), towns (river, year), people (town, thing)."""
    rng = random.Random(f"encyclopaedia/{seed}")
    titles = names(rng, TOWNS + RIVERS + PEOPLE)
    towns, rest = titles[:TOWNS], titles[TOWNS:]
    rivers = {name: rng.randint(21, 990) for name in rest[:RIVERS]}
    things = rng.sample([f"{kind} {thing}" for kind in KINDS for thing in THINGS], PEOPLE)
    places = {name: (rng.choice([*rivers]), rng.randint(1011, 1899)) for name in towns}
    people = {
        name: (rng.choice(towns), thing)
        for name, thing in zip(rest[RIVERS:], things, strict=True)
    }
    entries = {
        **{
            r: f"{r} is a river. It is {km} km long and frozen in winter."
            for r, km in rivers.items()
        },
        **{
            t: f"{t} is a town with a market. It was founded in {year} and lies on the river {r}."
            for t, (r, year) in places.items()
        },
        **{
            p: f"{p} was an inventor, best known for the {thing}. {p} was born in {town}."
            for p, (town, thing) in people.items()
        },
    }
    return entries, rivers, places, people


def terms(text):
    return re.findall(r"\w+", text.lower())


def searcher(entries):
    """Function (query) -> titles with the beginnings of their entries, by shared rare words."""
    held = {title: Counter(terms(text)) for title, text in entries.items()}
    counts = Counter(word for words in held.values() for word in words)
    weight = {word: math.log(len(entries) / count) for word, count in counts.items()}

    def search(query: str) -> str:
        """Find entries of the encyclopaedia by words.

        Args:
            query: some words
        """
        wanted = set(terms(query))
        score = {t: sum(weight[w] for w in wanted if w in words) for t, words in held.items()}
        best = sorted((t for t in score if score[t] > 0), key=lambda t: (-score[t], t))
        return (
            "\n".join(f"{t}: {entries[t].partition('. ')[0]}." for t in best[:FOUND])
            or "nothing"
        )

    return search


@cache
def tools(seed):
    entries = encyclopaedia(seed)[0]

    def read(title: str) -> str:
        """Show one entry.

        Args:
            title: title of the entry
        """
        return entries.get(title.strip().capitalize(), "there is no such entry: search first")

    return [searcher(entries), read]


def tasks(config):
    _, rivers, places, people = encyclopaedia(config.seed)

    def make(rng):
        person = rng.choice([*people])
        town, thing = people[person]
        river, year = places[town]
        who, first = (
            (f"the inventor of the {thing}", thing) if rng.random() < 0.5 else (person, person)
        )
        if rng.random() < 0.5:
            question, answer = (
                f"In which year was the town founded in which {who} was born?",
                year,
            )
        else:
            question = f"How many km long is the river of the town in which {who} was born?"
            answer = rivers[river]
        path = [person, town] if answer == year else [person, town, river]
        fields = {"seed": config.seed, "first": first, "path": path, "answer": str(answer)}
        return {"question": f"{question} {HOW}", **fields}

    return distinct(make, config.tasks, config.seed)


def gold(task):
    reads = [tool_call("read", title=title) for title in task["path"]]
    return [
        tool_call("search", query=task["first"]),
        *reads,
        f"<answer>{task['answer']}</answer>",
    ]


CARD = Card("retrieval", data="made on the spot", licence="MIT", gold=gold, turns="1-10")


@environment(
    tasks, settings=SETTINGS, card=CARD, group_size=8, max_tokens=128, describe_tools=True
)
async def retrieval(task, model):
    reply = await model.use_tools(
        task["question"], tools=tools(task["seed"]), max_turns=MAX_TURNS
    )
    return answer_in(reply) == task["answer"]


if __name__ == "__main__":
    retrieval.cli()
