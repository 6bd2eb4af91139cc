"""Code repair: a small module with one or two mistakes, and a test that fails because of them.

    python environments/library/code_repair.py serve

The mistakes are made from seed: an operator, a comparison or a number is replaced. The score is 1
if the repaired module passes the test and hidden tests; the tests run in a sandbox, and their
expected results never enter it (docs/cookbook.md). Needs bubblewrap.
"""

import ast
import copy
import json
import string

from atroposlib.environments.common.generated import SETTINGS, code_block, code_in, distinct
from atroposlib.envs import environment, sandbox
from atroposlib.envs.function_env.card import Card

HIDDEN = 16  # calls
RULES = """\
This module has {count}:

{module}
The call {call} returns {wrong}, and should return {right}. Repair the module, so that other calls \
are right too. Reply with one block of code, the whole module."""


def numbers(rng):
    return [rng.randint(-9, 20) for _ in range(rng.randint(3, 9))]


def word(rng, letters=string.ascii_lowercase[:5]):
    return "".join(rng.choice(letters) for _ in range(rng.randint(1, 9)))


# Module without while and recursion, so that no mistake makes it endless; the function that is
# called; and its arguments.
MODULES = (
    (
        '''
def runs(text):
    """Lengths of the runs of equal letters, as (letter, length)."""
    found = []
    for letter in text:
        if found and found[-1][0] == letter:
            found[-1][1] += 1
        else:
            found.append([letter, 1])
    return found


def encode(text):
    """Text with every run of three letters or more as its length and letter."""
    pieces = []
    for letter, length in runs(text):
        pieces.append(letter * length if length < 3 else str(length) + letter)
    return "".join(pieces)
''',
        "encode",
        lambda rng: ["".join(rng.choice("ab") * rng.randint(1, 5) for _ in range(4))],
    ),
    (
        '''
def median(values):
    """The middle of the sorted values; of two in the middle the lower one."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


def smooth(values, width):
    """Medians of all windows of that width."""
    return [median(values[i:i + width]) for i in range(len(values) - width + 1)]
''',
        "smooth",
        lambda rng: [numbers(rng) + [1, 5], rng.randint(2, 4)],
    ),
    (
        '''
def overlaps(a, b):
    """Whether two spans (begin, end) share a point; an end is not part of a span."""
    return a[0] < b[1] and b[0] < a[1]


def rooms(meetings):
    """The least number of rooms in which all meetings can take place."""
    most = 0
    for one in meetings:
        at_once = 0
        for other in meetings:
            if overlaps(one, other) and other[0] <= one[0]:
                at_once += 1
        most = max(most, at_once)
    return most
''',
        "rooms",
        lambda rng: [
            [[b, b + rng.randint(1, 5)] for b in rng.sample(range(16), rng.randint(2, 6))]
        ],
    ),
    (
        '''
def digits(number, base):
    """Digits of a number in a base, the highest first."""
    found = []
    for _ in range(32):
        found.append(number % base)
        number //= base
        if number == 0:
            break
    return found[::-1]


def checked(number):
    """Digits in base 10, and a last one that makes their weighted sum divisible by 11."""
    total = 0
    for place, digit in enumerate(digits(number, 10)):
        total += (place + 2) * digit
    return digits(number, 10) + [(11 - total % 11) % 11]
''',
        "checked",
        lambda rng: [rng.randint(10, 99999)],
    ),
    (
        '''
def neighbours(grid, row, column):
    """How many of the eight cells around a cell are 1."""
    count = 0
    for r in range(row - 1, row + 2):
        for c in range(column - 1, column + 2):
            inside = 0 <= r < len(grid) and 0 <= c < len(grid[0])
            if inside and (r, c) != (row, column):
                count += grid[r][c]
    return count


def step(grid):
    """The next generation of the game of life."""
    new = []
    for r, row in enumerate(grid):
        alive = [neighbours(grid, r, c) for c in range(len(row))]
        new.append([1 if n == 3 or (n == 2 and cell == 1) else 0 for n, cell in zip(alive, row)])
    return new
''',
        "step",
        lambda rng: [[[rng.randint(0, 1) for _ in range(4)] for _ in range(4)]],
    ),
    (
        '''
def is_leap(year):
    """Whether a year of the Gregorian calendar has 366 days."""
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def day_of_year(year, month, day):
    """Number of a day in its year; 1 January is 1."""
    lengths = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
    total = day
    for number in range(1, month):
        total += lengths[number - 1]
        if number == 2 and is_leap(year):
            total += 1
    return total
''',
        "day_of_year",
        lambda rng: [
            rng.choice([1900, 2000, 2023, 2024, 2100]),
            rng.randint(1, 12),
            rng.randint(1, 28),
        ],
    ),
    (
        '''
def distance(a, b):
    """Least number of insertions, deletions and replacements that make a text of another."""
    row = list(range(len(b) + 1))
    for i in range(1, len(a) + 1):
        before = row
        row = [i]
        for j in range(1, len(b) + 1):
            replaced = before[j - 1] + (0 if a[i - 1] == b[j - 1] else 1)
            row.append(min(before[j] + 1, row[j - 1] + 1, replaced))
    return row[-1]


def nearest(word, words):
    """The first of the words with the least distance, and that distance."""
    best = words[0]
    for other in words[1:]:
        if distance(word, other) < distance(word, best):
            best = other
    return [best, distance(word, best)]
''',
        "nearest",
        lambda rng: [word(rng), [word(rng) for _ in range(4)]],
    ),
    (
        '''
def balance(entries):
    """Balances by account of the entries (from, to, amount)."""
    balances = {}
    for source, target, amount in entries:
        balances[source] = balances.get(source, 0) - amount
        balances[target] = balances.get(target, 0) + amount
    return balances


def in_debt(entries, limit):
    """Accounts whose balance is below minus the limit, sorted by name."""
    found = []
    for name, amount in balance(entries).items():
        if amount < 0 - limit:
            found.append(name)
    return sorted(found)
''',
        "in_debt",
        lambda rng: [
            [[*rng.sample("abcde", 2), rng.randint(1, 9)] for _ in range(6)],
            rng.randint(0, 6),
        ],
    ),
)
OTHER = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Mod: ast.FloorDiv},
}


def places(tree):
    """Operators, comparisons and numbers that can be replaced."""
    nodes = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and type(node.value) is int:
            nodes.append(node)
        elif (
            isinstance(node, (ast.BinOp, ast.BoolOp, ast.AugAssign)) and type(node.op) in OTHER
        ):
            nodes.append(node)
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in OTHER:
            nodes.append(node)
    return nodes


def mistaken(rng, tree, count):
    """The module with ``count`` mistakes."""
    changed = copy.deepcopy(tree)
    for node in rng.sample(places(changed), count):
        if isinstance(node, ast.Constant):
            node.value += rng.choice([-1, 1])
        elif isinstance(node, ast.Compare):
            node.ops[0] = OTHER[type(node.ops[0])]()
        else:
            node.op = OTHER[type(node.op)]()
    return ast.unparse(changed)


def results(module, function, calls):
    """JSON of what the module returns, or the name of the exception; for modules of this file."""
    names = {}
    exec(module, names)
    values = []
    for call in calls:
        try:
            values.append(json.dumps(names[function](*call)))
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            values.append(type(error).__name__)
    return values


def make(rng):
    source, function, arguments = rng.choice(MODULES)
    tree, count = ast.parse(source), rng.randint(1, 2)
    broken, whole = mistaken(rng, tree, count), ast.unparse(tree)
    calls = [json.loads(json.dumps(arguments(rng))) for _ in range(HIDDEN)]
    expected, actual = results(whole, function, calls), results(broken, function, calls)
    shown = next((i for i in range(HIDDEN) if actual[i] != expected[i]), None)
    if shown is None:
        return None  # the mistake does not show
    call = f"{function}({', '.join(map(repr, calls[shown]))})"
    question = RULES.format(
        count="a mistake" if count == 1 else "two mistakes",
        module=code_block(broken, "python"),
        call=call,
        wrong=actual[shown],
        right=expected[shown],
    )
    task = {"question": question, "function": function, "calls": calls, "expected": expected}
    return {**task, "whole": whole}


async def tasks(config):
    await sandbox.ready(config.sandbox)
    return distinct(make, config.tasks, config.seed)


CARD = Card(
    "code",
    data="made on the spot from eight small modules",
    licence="MIT",
    gold=lambda task: code_block(task["whole"], "python"),
    extras="bubblewrap",
)


@environment(
    tasks,
    rewards={"right": 1.0, "share": 0.0},
    settings=SETTINGS | sandbox.SETTINGS,
    card=CARD,
    group_size=8,
)
async def code_repair(task, model, config):
    module = code_in(await model.chat(task["question"]), "python")
    if module is None:
        return {"right": 0.0, "share": 0.0}
    function, calls = task["function"], task["calls"]
    actual, _ = await sandbox.results_of(module, function, calls, kind=config.sandbox)
    same = sum(a == b for a, b in zip(actual, task["expected"]))
    return {"right": actual == task["expected"], "share": same / len(calls)}


if __name__ == "__main__":
    code_repair.cli()
