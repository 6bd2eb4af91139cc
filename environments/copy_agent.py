"""Environment around an agent that uses only the ``openai`` package.

    python environments/copy_agent.py serve --openai.base_url http://localhost:9001/v1

The task is that of copy_server.py: copy a short word.
"""

from itertools import product

from openai import AsyncOpenAI

from atroposlib.envs import environment

LETTERS = "abcdefghij"


async def agent(client: AsyncOpenAI, word: str) -> str:
    """Any agent: takes a client and a task, and returns a text."""
    completion = await client.chat.completions.create(
        model="any", messages=[{"role": "user", "content": word}], max_tokens=len(word)
    )
    return completion.choices[0].message.content or ""


@environment(
    ["".join(letters) for letters in product(LETTERS, repeat=4)],
    rewards={"score": 1.0, "exact": 0.0},
    eval_items=64,
)
async def copy_agent(word, model):
    async with await model.openai() as client:  # or model.endpoint(): base_url and api_key
        copy = await agent(client, word)
    letters = [1.0 if a == b else 0.1 * (a in LETTERS) for a, b in zip(copy, word)]
    return {"score": sum(letters) / len(word), "exact": copy == word}


if __name__ == "__main__":
    copy_agent.cli()
