"""Pictures: what is in a drawing of coloured shapes, or in a scan of a digit.

    python environments/library/pictures.py process --env.source digits

The model gets a PNG in a data URL, so its server has to take pictures; a server that reads
text only ends the command with its refusal. The score is 1 for the right answer. ``digits``
are the 1,797 scans in the wheel of scikit-learn (extra ``digits``), ``one`` is the colour of a single
shape in a drawing of 32 x 32 pixels, answered by the word alone, which a model of random weights
learns. ``blank`` shows white pictures instead: what a model then reaches, it reaches without looking.
"""

import base64
import struct
import zlib

from pydantic import Field

from atroposlib.environments.common.generated import SETTINGS, TAGS, answer_in, distinct
from atroposlib.envs import environment
from atroposlib.envs.function_env.card import Card
from atroposlib.errors import ConfigError

COLOURS = {
    "red": b"\xd8\x1e\x1e",
    "green": b"\x1e\x96\x32",
    "blue": b"\x1e\x46\xd2",
    "yellow": b"\xf0\xc8\x14",
}
INSIDE = {
    "circle": lambda x, y, r: x * x + y * y <= r * r,
    "square": lambda x, y, r: max(abs(x), abs(y)) <= r,
    "triangle": lambda x, y, r: -r <= y <= r and 2 * abs(x) <= y + r,
}
CELL, CELLS, RADII = 56, 4, (14, 22)  # pixels; cells per side; half of a shape's width
SCALE = 12  # pixels per pixel of a scanned digit
SMALL, SMALL_RADII = 32, (7, 11)  # side of a small drawing; half of its shape's width


def make(rng):
    """A drawing, as lists of kind, colour, middle and radius, with a question about it."""
    shapes = []
    for cell in rng.sample(range(CELLS * CELLS), rng.randint(3, 10)):
        radius = rng.randint(*RADII)
        middle = [
            place * CELL + CELL // 2 + rng.randint(radius - 26, 26 - radius)
            for place in (cell % CELLS, cell // CELLS)
        ]
        shapes.append([rng.choice([*INSIDE]), rng.choice([*COLOURS]), *middle, radius])
    kind, colour = rng.choice([*INSIDE]), rng.choice([*COLOURS])
    of_kind = [shape[1] for shape in shapes if shape[0] == kind]
    ask, answer = rng.choice(
        [
            (f"How many {kind}s are there?", len(of_kind)),
            (f"How many shapes are {colour}?", sum(shape[1] == colour for shape in shapes)),
            (f"How many {colour} {kind}s are there?", of_kind.count(colour)),
            *(
                [(f"Which colour has the only {kind}?", of_kind[0])]
                if len(of_kind) == 1
                else []
            ),
        ]
    )
    return {"question": f"{ask} {shapes}", "ask": ask, "shapes": shapes, "answer": str(answer)}


def make_one(rng):
    """A small drawing of a shape."""
    radius = rng.randint(*SMALL_RADII)
    middle = [rng.randint(radius, SMALL - 1 - radius) for _ in range(2)]
    shape = [rng.choice([*INSIDE]), rng.choice([*COLOURS]), *middle, radius]
    ask = "Which colour?"
    return {
        "question": f"{ask} {shape}",
        "ask": ask,
        "shapes": [shape],
        "side": SMALL,
        "plain": True,
        "answer": shape[1],
    }


def tasks(config):
    if config.source == "digits":
        made = scans(config.tasks)
    else:  # distinct by drawing and question
        source = make_one if config.source == "one" else make
        made = [
            {name: value for name, value in task.items() if name != "question"}
            for task in distinct(source, config.tasks, config.seed)
        ]
    return [{**task, "blank": True} for task in made] if config.blank else made


def scans(count):
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ConfigError("--env.source digits: pip install 'atropos-rl[digits]'") from error
    digits = load_digits()
    return [
        {"id": f"digit/{i}", "ask": "Which digit is this?", "grey": grey, "answer": str(digit)}
        for i, (grey, digit) in enumerate(
            zip(digits.images.astype(int).tolist(), digits.target)
        )
    ][:count]


def draw(shapes, side=CELL * CELLS):
    """Lines of RGB pixels on white."""
    lines = [bytearray(b"\xff" * (3 * side)) for _ in range(side)]
    for kind, colour, left, top, radius in shapes:
        for y in range(-radius, radius + 1):
            for x in range(-radius, radius + 1):
                if INSIDE[kind](x, y, radius):
                    at = 3 * (left + x)
                    lines[top + y][at : at + 3] = COLOURS[colour]
    return lines


def enlarge(grey):
    """Lines of RGB pixels of an image with 17 levels, black on white."""
    wide = [b"".join(bytes([255 - 15 * v]) * (3 * SCALE) for v in row) for row in grey]
    return [row for row in wide for _ in range(SCALE)]


def png(lines):
    """PNG file of lines of RGB pixels."""

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data))
            + kind
            + data
            + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", len(lines[0]) // 3, len(lines), 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + line for line in lines))
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def picture(task):
    if "grey" in task:
        lines = enlarge(task["grey"])
    else:
        lines = draw(task["shapes"], task.get("side", CELL * CELLS))
    if task.get("blank"):
        lines = [b"\xff" * len(line) for line in lines]
    return f"data:image/png;base64,{base64.b64encode(png(lines)).decode()}"


def text(task):
    """The question, with the form of the answer."""
    return task["ask"] if task.get("plain") else f"{task['ask']} {TAGS}"


def is_right(task, reply):
    answer = reply.strip() if task.get("plain") else answer_in(reply) or ""
    return answer.lower() == task["answer"]


def gold(task):
    return task["answer"] if task.get("plain") else f"<answer>{task['answer']}</answer>"


CARD = Card(
    "multimodal",
    data="drawn on the spot; digits: UCI test set in scikit-learn",
    licence="MIT; CC BY 4.0",
    gold=gold,
    extras="a server that takes pictures; `digits` for `--env.source digits`",
)


@environment(
    tasks,
    settings={
        **SETTINGS,
        "source": Field(
            default="shapes",
            pattern="^(shapes|digits|one)$",
            description="shapes, digits, or one: a small drawing of one shape",
        ),
        "blank": Field(default=False, description="show white pictures, as a control"),
    },
    card=CARD,
    group_size=8,
    max_tokens=256,
)
async def pictures(task, model):
    shown = {"type": "image_url", "image_url": {"url": picture(task)}}
    question = {"type": "text", "text": text(task)}
    reply = await model.chat([{"role": "user", "content": [shown, question]}])
    return is_right(task, reply)


if __name__ == "__main__":
    pictures.cli()
