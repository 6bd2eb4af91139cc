"""SQL: questions about a small shop, answered by a query on SQLite.

    python environments/library/sql_queries.py serve

The query runs, read-only and bounded, on two databases that the prompt does not show, and its rows
are compared with the rows of the right query: in order where the question names an order.
Easier, for example for a small model: ``--env.tables 1``.
"""

import random
from functools import partial

import apsw
from pydantic import Field

from atroposlib.environments.common.bounded_sql import bound_database, rows_of
from atroposlib.environments.common.generated import SETTINGS, code_block, code_in, distinct
from atroposlib.envs import environment
from atroposlib.envs.function_env.card import Card

SCHEMA = """\
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, city TEXT, joined INTEGER);
CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT, category TEXT, price INTEGER);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER REFERENCES customers(id),
                     product_id INTEGER REFERENCES products(id), quantity INTEGER, year INTEGER);"""
CITIES = ("Oslo", "Lima", "Cairo", "Quito", "Hanoi", "Turin")
CATEGORIES = ("tools", "books", "toys", "garden")
YEARS = range(2018, 2026)
# Lines of a question and its query; {c} a city, {k} a category, {y} a year, {n} a small number,
# {p} a price, {all} the three tables joined.
QUESTIONS = """\
How many customers live in {c} and joined after {y}?
SELECT count(*) FROM customers WHERE city = '{c}' AND joined > {y}
What are the names of the customers in {c} who joined before {y}?
SELECT name FROM customers WHERE city = '{c}' AND joined < {y}
What are the names of the {n} most expensive products of the category {k}, the most expensive first?
SELECT name FROM products WHERE category = '{k}' ORDER BY price DESC LIMIT {n}
How many pieces of the category {k} were ordered in {y}?
SELECT sum(quantity) FROM {all} WHERE category = '{k}' AND year = {y}
How much money (quantity times price) did customers from {c} spend in {y}?
SELECT sum(quantity * price) FROM {all} WHERE city = '{c}' AND year = {y}
Which customers placed more than {n} orders since the beginning of {y}? Give their ids.
SELECT customer_id FROM orders WHERE year >= {y} GROUP BY customer_id HAVING count(*) > {n}
What are the ids of customers from {c} who never ordered anything of the category {k}?
SELECT id FROM customers WHERE city = '{c}' EXCEPT SELECT customer_id FROM {all} WHERE category = '{k}'
How many orders of {y} are of products that cost more than {p}? Give each city with a number.
SELECT city, count(*) FROM {all} WHERE year = {y} AND price > {p} GROUP BY city
Which products were ordered in {y} by customers from {c}? Give each name once, in alphabetical order.
SELECT DISTINCT p.name FROM {all} WHERE year = {y} AND city = '{c}' ORDER BY p.name
What is the highest price of a product that was ordered with a quantity of more than {n} in {y}?
SELECT max(price) FROM {all} WHERE quantity > {n} AND year = {y}
What is the average price of the products that cost less than {p}? Give each category with a number.
SELECT category, avg(price) FROM products WHERE price < {p} GROUP BY category"""
JOINED = "orders JOIN customers c ON c.id = customer_id JOIN products p ON p.id = product_id"
RULES = "{schema}\n\n{question}\nReply with one SQL query for SQLite in a block of code."


def database(seed):
    """A shop in memory that can only be read; prices and names of products differ."""
    rng, shop = random.Random(seed), apsw.Connection(":memory:")
    shop.execute(SCHEMA)
    people = [
        (None, f"Customer {i}", rng.choice(CITIES), rng.choice(YEARS)) for i in range(60)
    ]
    prices = rng.sample(range(10, 200), 40)
    goods = [(None, f"Product {i}", rng.choice(CATEGORIES), prices[i]) for i in range(40)]
    sold = [
        (None, rng.randint(1, 60), rng.randint(1, 40), rng.randint(1, 9), rng.choice(YEARS))
        for _ in range(400)
    ]
    shop.executemany("INSERT INTO customers VALUES (?, ?, ?, ?)", people)
    shop.executemany("INSERT INTO products VALUES (?, ?, ?, ?)", goods)
    shop.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", sold)
    return bound_database(shop)


def make(rng, hidden, tables):
    lines = QUESTIONS.splitlines()
    question, query = rng.choice(list(zip(lines[::2], lines[1::2])))
    schema = SCHEMA
    if tables < 3:
        shown = [table for table in SCHEMA.split(";\n") if f" {table.split()[2]}" in query]
        if "{all}" in query or len(shown) > tables:
            return None
        schema = ";\n".join(shown)
    filled = {
        "c": rng.choice(CITIES),
        "k": rng.choice(CATEGORIES),
        "y": rng.choice(YEARS[1:]),
        "n": rng.randint(2, 6),
        "p": rng.randrange(40, 180, 5),
        "all": JOINED,
    }
    query = query.format(**filled)
    results = [rows_of(shop, query) for shop in hidden]
    if not all(rows and rows[0][0] for rows in results) or results[0] == results[1]:
        return None
    text = RULES.format(schema=schema, question=question.format(**filled))
    return {"question": text, "query": query}


def tasks(config):
    hidden = [*map(database, (1, 2))]
    return distinct(
        partial(make, hidden=hidden, tables=config.tables), config.tasks, config.seed
    )


def right_rows(task, answer):
    """1 if the query gives the right rows on both databases."""
    query = code_in(answer, "sql")
    if query is None:
        return 0.0
    for shop in map(database, (1, 2)):  # a connection belongs to a single thread
        expected = rows_of(shop, task["query"])
        try:
            rows = rows_of(shop, query)
        except (apsw.Error, ValueError):
            return 0.0
        if "ORDER BY" not in task["query"]:
            rows, expected = sorted(rows, key=repr), sorted(expected, key=repr)
        if rows != expected:
            return 0.0
    return 1.0


TABLES = {
    "tables": Field(
        default=3, ge=1, le=3, description="of a question; below 3 no others are shown"
    )
}
CARD = Card(
    "code",
    data="made on the spot",
    licence="MIT",
    gold=lambda task: code_block(task["query"], "sql"),
)


@environment(tasks, rewards=right_rows, settings=SETTINGS | TABLES, card=CARD, group_size=8)
async def sql_queries(task, model):
    return await model.chat(task["question"])


if __name__ == "__main__":
    sql_queries.cli()
