"""Workspace: errands in a folder of files and a database, with the tools of an MCP server.

    python environments/library/workspace.py serve

Each rollout has its own folder and server. The score is 1 if the files and the database are
in the right state at the end; the last reply does not count. Needs the package mcp:
pip install 'atropos-rl[mcp]'.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

import apsw

from atroposlib.adapters import import_package
from atroposlib.adapters.mcp import connect_tools
from atroposlib.environments.common import workspace_server
from atroposlib.environments.common.generated import SETTINGS, distinct, tool_call
from atroposlib.envs import environment
from atroposlib.envs.function_env.card import Card

MAX_TURNS = 12
GOODS = "lamp pump clock kiln press lens anchor saddle whistle stove crane pulley".split()
GROUPS = ("tools", "garden", "kitchen")
SCHEMA = "CREATE TABLE stock (name TEXT PRIMARY KEY, kind TEXT, price INTEGER, pieces INTEGER)"
ROWS = "SELECT name, kind, price, pieces FROM stock ORDER BY name"
RULES = """\
You manage a shop with tools: a folder of text files, a calculator, and a database with the table \
stock (name, kind, price, pieces). {errand} Change nothing else. When all is done, say so."""


# Each errand is (text, files before, files after, stock after, tool calls that do it).


def delivery(rng, stock):
    arrived = {name: rng.randint(2, 60) for name in rng.sample([*stock], rng.randint(2, 3))}
    note = "".join(f"{pieces} x {name}\n" for name, pieces in arrived.items())
    after = {
        name: (kind, price, pieces + arrived.get(name, 0))
        for name, (kind, price, pieces) in stock.items()
    }
    text = (
        "delivery.txt lists what arrived today. Add it to the pieces in stock, then delete it."
    )
    changes = [
        f"UPDATE stock SET pieces = pieces + {n} WHERE name = '{x}'"
        for x, n in arrived.items()
    ]
    calls = [("read_file", {"name": "delivery.txt"})]
    calls += [("query", {"sql": sql}) for sql in changes]
    calls += [("delete_file", {"name": "delivery.txt"})]
    return text, {"delivery.txt": note}, {}, after, calls


def shortage(rng, stock):
    least = rng.randint(10, 50)
    names = sorted(name for name, (_, _, pieces) in stock.items() if pieces < least)
    report = "".join(f"{name}\n" for name in names)
    text = (
        f"Write the names of the goods with fewer than {least} pieces to order.txt, one on each "
        "line, in alphabetical order."
    )
    sql = f"SELECT name FROM stock WHERE pieces < {least} ORDER BY name"
    calls = [("query", {"sql": sql}), ("write_file", {"name": "order.txt", "text": report})]
    return text, {}, {"order.txt": report}, stock, calls


def invoice(rng, stock):
    bought = {name: rng.randint(11, 90) for name in rng.sample([*stock], rng.randint(2, 3))}
    order = "".join(f"{pieces} x {name}\n" for name, pieces in bought.items())
    sum_of = " + ".join(f"{pieces} * {stock[name][1]}" for name, pieces in bought.items())
    total = str(sum(pieces * stock[name][1] for name, pieces in bought.items()))
    text = "order.txt is an order. Write what it costs to total.txt, the number alone."
    calls = [
        ("read_file", {"name": "order.txt"}),
        ("query", {"sql": "SELECT name, price FROM stock"}),
        ("calculate", {"expression": sum_of}),
        ("write_file", {"name": "total.txt", "text": total}),
    ]
    files = {"order.txt": order}
    return text, files, files | {"total.txt": total}, stock, calls


def prices(rng, stock):
    group, more, most = rng.choice(GROUPS), rng.randint(2, 30), rng.randint(60, 160)
    after = {
        name: (kind, price + more if kind == group and price < most else price, pieces)
        for name, (kind, price, pieces) in stock.items()
    }
    text = f"Raise the price of all goods of the kind {group} that cost less than {most} by {more}."
    sql = f"UPDATE stock SET price = price + {more} WHERE kind = '{group}' AND price < {most}"
    return text, {}, {}, after, [("query", {"sql": sql})]


def complaints(rng, stock):
    numbers, named = rng.sample(range(100, 999), 4), rng.sample([*stock], 3)
    broken = named[0]
    goods = [broken, *rng.choices(named, k=3)]
    rng.shuffle(goods)
    files = {
        f"letter_{number}.txt": f"Dear shop, the {item} that I bought is broken.\n"
        for number, item in zip(numbers, goods)
    }
    gone = {name for name, text in files.items() if f" {broken} " in text}
    after = {name: text for name, text in files.items() if name not in gone}
    stock_after = {name: row for name, row in stock.items() if name != broken}
    text = (
        f"The {broken} is no longer sold: delete it from the stock, and every letter that is "
        "about it."
    )
    calls = [("list_files", {})]
    calls += [("read_file", {"name": name}) for name in sorted(files)]
    calls += [("delete_file", {"name": name}) for name in sorted(gone)]
    calls += [("query", {"sql": f"DELETE FROM stock WHERE name = '{broken}'"})]
    return text, files, after, stock_after, calls


ERRANDS = (delivery, shortage, invoice, prices, complaints)


def make(rng):
    stock = {
        name: (rng.choice(GROUPS), rng.randint(5, 200), rng.randint(0, 80))
        for name in rng.sample(GOODS, 8)
    }
    text, files, files_after, after, calls = rng.choice(ERRANDS)(rng, stock)
    if (files, stock) == (files_after, after) or not all(files_after.values()):
        return None
    noise = rng.randint(100, 999)  # two tasks may have the same text and different stocks
    distractors = {f"note_{noise}.txt": f"Call the bank about number {noise}.\n"}
    question = RULES.format(errand=f"{text} note_{noise}.txt is not your concern.")
    states = {
        "before": [files | distractors, rows(stock)],
        "after": [files_after | distractors, rows(after)],
    }
    return {"question": question, **states, "calls": calls}


def rows(stock):
    return [[name, *stock[name]] for name in sorted(stock)]


def tasks(config):
    import_package("mcp", "mcp")
    return distinct(make, config.tasks, config.seed)


# --- the state ----------------------------------------------------------------------------


def lay_out(folder, state):
    files, stock = state
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    database = apsw.Connection(str(folder / workspace_server.DATABASE))
    database.execute(SCHEMA)
    database.executemany("INSERT INTO stock VALUES (?, ?, ?, ?)", stock)
    database.close()


def state_of(folder):
    """Texts of the files without space at their ends, and the rows of the table."""
    files = {path.name: path.read_text("utf-8").rstrip() for path in folder.glob("*.txt")}
    database = apsw.Connection(str(folder / workspace_server.DATABASE))
    table = [list(row) for row in database.execute(ROWS)]
    database.close()
    return [files, table]


def gold(task):
    return [*(tool_call(name, **arguments) for name, arguments in task["calls"]), "Done."]


CARD = Card(
    "tools",
    data="made on the spot",
    licence="MIT",
    gold=gold,
    turns="1-12",
    extras="atropos-rl[mcp]",
)


@environment(
    tasks, settings=SETTINGS, card=CARD, group_size=8, max_tokens=256, describe_tools=True
)
async def workspace(task, model):
    with tempfile.TemporaryDirectory(prefix="atropos-workspace-") as name:
        folder = Path(name)
        await asyncio.to_thread(lay_out, folder, task["before"])
        async with connect_tools(
            [sys.executable, "-m", workspace_server.__name__, name]
        ) as tools:
            await model.use_tools(task["question"], tools=tools, max_turns=MAX_TURNS)
        files, stock = await asyncio.to_thread(state_of, folder)
    wanted, stock_wanted = task["after"]
    return stock == stock_wanted and files == {n: t.rstrip() for n, t in wanted.items()}


if __name__ == "__main__":
    workspace.cli()
