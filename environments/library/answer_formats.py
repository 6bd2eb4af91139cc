"""Answer formats: facts of a sentence as JSON under a schema, CSV, YAML, XML, or lines.

    python environments/library/answer_formats.py serve

The score is 1 if the whole reply parses to exactly the facts, with their types.
"""

import csv
import io
import json
import xml.etree.ElementTree as ElementTree

import yaml

from atroposlib.environments.common.generated import SETTINGS, tasks_of
from atroposlib.envs import environment
from atroposlib.envs.function_env.card import Card

NAMES = ("Ada", "Boris", "Chen", "Dalia", "Emeka", "Frida", "Goran", "Hana", "Ivo", "Jun")
CITIES = ("Oslo", "Lima", "Cairo", "Quito", "Hanoi", "Turin")
KINDS = ("red", "green", "blue")
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "city": {"type": "string"},
        "age": {"type": "integer"},
        "member": {"type": "boolean"},
        "colour": {"enum": [*KINDS]},
    },
    "required": ["name", "city", "age", "member", "colour"],
    "additionalProperties": False,
}
KEYS = "name, city, age, member (true or false) and colour"
MAX_CHARS = 500  # limit of a reply; a longer reply is not parsed


def texts(facts):
    """The facts as texts, in the form of formats without types."""
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in facts.items()
    }


def from_xml(text):
    if "<!" in text:
        raise ValueError("no entities")
    root = ElementTree.fromstring(text.strip())
    children = [(child.tag, child.text) for child in root]
    return (
        dict(children)
        if root.tag == "person" and len(children) == len(dict(children))
        else None
    )


def from_csv(text):
    rows = list(csv.reader(io.StringIO(text.strip()), strict=True))
    return dict(zip(*rows)) if len(rows) == 2 and len(rows[0]) == len(rows[1]) else None


def from_lines(text):
    return dict(line.split(" = ", 1) for line in text.strip().splitlines())


# Request, writer, reader, and whether values keep their types.
FORMATS = (
    (
        f"Reply with JSON of this schema and nothing else:\n{json.dumps(SCHEMA)}",
        json.dumps,
        json.loads,
        True,
    ),
    (
        f"Reply with YAML and nothing else: the keys {KEYS}.",
        yaml.safe_dump,
        yaml.safe_load,
        True,
    ),
    (
        f"Reply with CSV and nothing else: a line of the columns {KEYS}, and a line of values.",
        lambda facts: "\n".join(map(",".join, zip(*texts(facts).items()))),
        from_csv,
        False,
    ),
    (
        f"Reply with XML and nothing else: an element person with the elements {KEYS}.",
        lambda facts: "".join(
            ["<person>", *(f"<{k}>{v}</{k}>" for k, v in texts(facts).items()), "</person>"]
        ),
        from_xml,
        False,
    ),
    (
        f"Reply with five lines and nothing else, each written as key = value: {KEYS}.",
        lambda facts: "\n".join(f"{k} = {v}" for k, v in texts(facts).items()),
        from_lines,
        False,
    ),
)


def make(rng):
    facts = {
        "name": rng.choice(NAMES),
        "city": rng.choice(CITIES),
        "age": rng.randint(18, 90),
        "member": rng.random() < 0.5,
        "colour": rng.choice(KINDS),
    }
    kind = rng.randrange(len(FORMATS))
    about = "a member" if facts["member"] else "no member"
    sentence = (
        f"{facts['name']}, who is {facts['age']} and lives in {facts['city']}, is {about} of the club "
        f"and likes {facts['colour']} best."
    )
    return {"question": f"{sentence}\n{FORMATS[kind][0]}", "facts": facts, "format": kind}


def exact(task, answer):
    """1 if the reply is the facts in the format."""
    _, _, read, typed = FORMATS[task["format"]]
    expected = task["facts"] if typed else texts(task["facts"])
    if len(answer) > MAX_CHARS:
        return 0.0
    try:
        value = read(answer)
    except (ValueError, RecursionError, yaml.YAMLError, csv.Error, ElementTree.ParseError):
        return 0.0
    same = isinstance(value, dict) and value == expected
    return float(same and all(type(value[key]) is type(expected[key]) for key in expected))


CARD = Card(
    "formats",
    data="made on the spot",
    licence="MIT",
    gold=lambda task: FORMATS[task["format"]][1](task["facts"]),
)


@environment(
    tasks_of(make), rewards=exact, settings=SETTINGS, card=CARD, group_size=8, max_tokens=128
)
async def answer_formats(task, model):
    return await model.chat(task["question"])


if __name__ == "__main__":
    answer_formats.cli()
