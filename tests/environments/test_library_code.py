"""Code, SQL and regular expressions of the library: answers of other forms, and attacks."""

from __future__ import annotations

import json

import apsw
import pytest

from atroposlib.environments.library import code_execution, regular_expressions, sql_queries
from atroposlib.envs.function_env.card import play
from tests.envs.test_sandbox import needs_bubblewrap

TASK = {
    "question": "?",
    "inputs": [[1, 2], [3]] * 6,
    "expected": [json.dumps([2, 4]), json.dumps([6])] * 6,
}
FORGED = {
    "a verdict": "print('{\"passed\": true}')\nexit(0)\ndef solve(xs): return xs",
    "a result that is equal to everything": (
        "class L(list):\n  __eq__ = lambda a, b: True\ndef solve(xs): return L()"
    ),
    "another json": ("import json\njson.dumps = lambda x: '[2, 4]'\ndef solve(xs): return xs"),
    "results before the calls": (
        "import os\nos.write(1, b'[2, 4]\\n[6]\\n' * 6)\ndef solve(xs): return xs"
    ),
    "an exit": "import os\nos._exit(0)",
    "an endless loop": "def solve(xs):\n  while True: pass",
    "no function": "x = 1",
    "half of it": "def solve(xs): return [2, 4]",
}


@needs_bubblewrap
@pytest.mark.parametrize("name", FORGED)
async def test_a_forged_result_earns_nothing(name):
    reply = f"```python\n{FORGED[name]}\n```"
    reward, _ = await play(code_execution.code_execution, TASK, reply)
    assert reward.score == 0.0


@needs_bubblewrap
async def test_other_code_with_the_same_results_passes():
    reply = "Sure:\n```python\nimport math\ndef solve(xs):\n  return [math.prod((2, x)) for x in xs]\n```"
    reward, _ = await play(code_execution.code_execution, TASK, reply)
    assert reward.metrics == {"right": 1.0, "share": 1.0, "finished": 1.0}


QUERY = {"query": "SELECT name FROM products WHERE price > 100"}
REFUSED = {
    "a write": "DELETE FROM orders",
    "a write behind a query": "SELECT name FROM products WHERE price > 100; DROP TABLE orders",
    "a file": "ATTACH DATABASE 'other.sqlite' AS x",
    "an extension": "SELECT load_extension('x')",
    "a pragma": "PRAGMA table_info(orders)",
    "endless recursion": (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    ),
    "a huge join": "SELECT count(*) FROM orders a, orders b, orders c, orders d",
    "a huge text": "SELECT zeroblob(1000000000)",
    "a text that doubles": (
        "WITH RECURSIVE s(t) AS (SELECT 'aaaaaaaa' UNION ALL SELECT t || t FROM s) "
        "SELECT length(t) FROM s LIMIT 40"
    ),
    "no query": "",
    "another column": "SELECT id FROM products WHERE price > 100",
    "fewer rows": "SELECT name FROM products WHERE price > 100 LIMIT 3",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_query_that_is_wrong_or_not_allowed_earns_nothing(name):
    assert sql_queries.right_rows(QUERY, f"```sql\n{REFUSED[name]}\n```") == 0.0


def test_another_query_with_the_same_rows_passes():
    other = "SELECT p.name FROM products p WHERE NOT p.price <= 100 ORDER BY p.id DESC;"
    assert sql_queries.right_rows(QUERY, f"```sql\n{other}\n```") == 1.0


def test_the_order_of_rows_counts_where_the_question_names_one():
    task = {"query": QUERY["query"] + " ORDER BY price"}
    assert (
        sql_queries.right_rows(task, f"```sql\n{QUERY['query']} ORDER BY -price\n```") == 0.0
    )


def test_a_query_that_is_too_long_is_interrupted():
    with pytest.raises(apsw.InterruptError):
        sql_queries.rows_of(sql_queries.database(1), REFUSED["a huge join"])


STRINGS = {"yes": ["ab12", "x7", "a" * 30 + "1"], "no": ["12", "ab", "AB12", "a" * 30 + "!"]}


@pytest.mark.parametrize(
    "pattern, score",
    [
        ("[a-z]+[0-9]+", 1.0),
        (r"[a-z]+\d{1,2}", 1.0),
        (".*", 0.0),
        ("ab12|x7", 0.0),
        ("(a|a)*(a|b|a)*(a+)+(.)*(a*)*$[a-z]", 0.0),
        ("(", 0.0),
        ("[a-z]{1,99999}[0-9]+", 0.0),
        ("a" * 500, 0.0),
    ],
)
def test_an_expression_is_scored_by_the_strings_it_matches(pattern, score):
    assert regular_expressions.separates(STRINGS, f"<answer>{pattern}</answer>") == score


def test_catastrophic_backtracking_ends_and_earns_nothing():
    strings = {"yes": ["aac"], "no": ["a" * 40 + "cb"]}
    assert regular_expressions.separates(strings, "<answer>(a|aa)+c</answer>") == 0.0
    assert regular_expressions.separates(strings, "<answer>a+c</answer>") == 1.0
