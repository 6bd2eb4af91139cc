"""Environments that are classes, in the ways of Atropos: with one defect each, and sound ones."""

from __future__ import annotations

import asyncio
import random
import re
import tempfile

from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig
from atroposlib.envs.function_env.card import Card
from atroposlib.envs.rollout.groups import ScoredDataGroup, ScoredDataItem
from atroposlib.utils.tokenize_for_trainer import tokenize_for_trainer

FINDS: dict[str, str] = {}
SOUND: list[str] = []
ROWS = [
    {"question": f"What is {i} times {i + 3}, plus 1000?", "answer": f"{1000 + i * (i + 3)}"}
    for i in range(3, 43)
]
CARD = Card("classes", "made here", "MIT", lambda row: f"<answer>{row['answer']}</answer>")


def broken(check):
    def made(env_cls):
        FINDS[env_cls.__name__] = check
        return env_cls

    return made


def sound(env_cls):
    SOUND.append(env_cls.__name__)
    return env_cls


def right(row, reply):
    found = re.findall(r"<answer>([^<]*)</answer>", reply)
    return float(len(found) == 1 and found[0].strip() == row["answer"])


def asked(row, history=()):
    system = {"role": "system", "content": "Put the number in answer tags."}
    return [system, {"role": "user", "content": row["question"]}, *history]


class Sums(BaseEnv):
    """Reads its rows again and again; the tokenizer of its settings is not here."""

    card = CARD

    @classmethod
    def config_init(cls):
        config = BaseEnvConfig(tokenizer_name="owner/absent", group_size=8, use_wandb=False)
        return config, [APIServerConfig(model_name="m", base_url="http://127.0.0.1:9/v1")]

    async def setup(self):
        self.rows, self.place = list(ROWS), 0

    async def get_next_item(self):
        self.place += 1
        return self.rows[(self.place - 1) % len(self.rows)]

    async def evaluate(self, *args, **kwargs):
        raise AssertionError("a validation does not evaluate")


class Samples(Sums):
    """One sample at a time."""

    async def collect_trajectory(self, item):
        reply = await self.reply(item)
        messages = asked(item, [{"role": "assistant", "content": reply}])
        row = tokenize_for_trainer(self.tokenizer, messages)
        return ScoredDataItem(**row, scores=self.score(item, reply)), []

    async def reply(self, item):
        completion = await self.server.chat_completion(
            messages=asked(item), n=1, max_tokens=self.config.max_token_length
        )
        return completion.choices[0].message.content

    def score(self, item, reply):
        return right(item, reply)


class Groups(Sums):
    """A group in one call; in another order, and none if all scores are equal."""

    async def collect_trajectories(self, item):
        async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
            completion = await managed.chat_completion(
                messages=asked(item), n=self.config.group_size, temperature=1.0
            )
            nodes = managed.nodes_for(completion)
        drawn = [(c.message.content, node) for c, node in zip(completion.choices, nodes)]
        random.shuffle(drawn)
        scores = self.scores(item, [reply for reply, _ in drawn])
        if len(set(scores)) == 1:
            return None, []
        group = ScoredDataGroup(tokens=[], masks=[], scores=scores, inference_logprobs=[])
        for _, node in drawn:
            group["tokens"].append(node.tokens)
            group["masks"].append(node.masked_tokens)
            group["inference_logprobs"].append(node.logprobs)
        return group, []

    def scores(self, item, replies):
        return [right(item, reply) for reply in replies]


# --- broken ---


@broken("failure.raises")
class ExceptionIsZero(Samples):
    async def reply(self, item):
        try:
            return await super().reply(item)
        except Exception:
            return ""


@broken("many.fails")
class SubstringMatch(Samples):
    card = Card("classes", "made here", "MIT", lambda row: row["answer"])

    def score(self, item, reply):
        return float(item["answer"] in reply)


@broken("leak.prompt")
class AnswerInThePrompt(Groups):
    async def get_next_item(self):
        row = await super().get_next_item()
        return {**row, "question": f"{row['question']} (Key: {row['answer']})"}


@broken("score.group")
class RelativeScore(Groups):
    card = Card("classes", "made here", "MIT", CARD.gold, floor=-1.0, best=2 / 3)

    def scores(self, item, replies):
        scores = super().scores(item, replies)
        return [score - sum(scores) / len(scores) for score in scores]


@broken("null.fails")
class EmptyIsRight(Groups):
    """No group of empty replies alone has a score."""

    def scores(self, item, replies):
        return [float(not reply.strip() or right(item, reply)) for reply in replies]


@broken("gold.passes")
class NeverAGroup(Groups):
    def scores(self, item, replies):
        return [0.0 for _ in replies]


@broken("score.repeat")
class RandomBonus(Samples):
    def score(self, item, reply):
        return right(item, reply) * random.choice((0.5, 1.0))


@broken("score.order")
class ScoresTheLastItem(Samples):
    async def collect_trajectory(self, item):
        self.last = item
        return await super().collect_trajectory(item)

    def score(self, item, reply):
        return right(self.last, reply)


@broken("leaves.nothing")
class LeavesFolders(Groups):
    async def collect_trajectories(self, item):
        tempfile.mkdtemp()
        return await super().collect_trajectories(item)


class WithoutACard(Groups):
    card = None


# --- sound ---


@sound
class SamplesOfATurn(Samples):
    pass


@sound
class GroupsOfATurn(Groups):
    pass


@sound
class BrevityAmongRightOnes(Groups):
    def scores(self, item, replies):
        scores = super().scores(item, replies)
        longest = max(map(len, replies))
        if set(scores) == {1.0}:
            return [1.0 - 0.5 * len(reply) / longest for reply in replies]
        return scores


@sound
class TextOfABaseModel(Sums):
    """Items of tuples and frozen sets, as released environments have them."""

    async def get_next_item(self):
        row = await super().get_next_item()
        return (tuple([frozenset(row.items())]), row["answer"])

    card = Card("classes", "made here", "MIT", lambda item: f"<answer>{item[1]}</answer>")

    async def collect_trajectories(self, item):
        row = dict(item[0][0])
        prompt = f"Question: {row['question']}\nAnswer:"
        completion = await self.server.completion(prompt=prompt, n=self.config.group_size)
        group = ScoredDataGroup(tokens=[], masks=[], scores=[])
        before = self.tokenizer.encode(prompt)
        for choice in completion.choices:
            tokens = self.tokenizer.encode(choice.text)
            group["tokens"].append(before + tokens)
            group["masks"].append([-100] * len(before) + tokens)
            group["scores"].append(right(row, choice.text))
        return group, []


@sound
class Higher(Sums):
    """A game of several turns in each sample, all samples at once."""

    card = Card(
        "games", "made here", "MIT", lambda item: ["50", f"{item['number']}"], turns="2"
    )

    async def setup(self):
        self.rows, self.place = [{"number": n} for n in range(51, 91)], 0

    async def collect_trajectories(self, item):
        samples = [self.game(item) for _ in range(self.config.group_size)]
        return await asyncio.gather(*samples), []

    async def game(self, item):
        messages, score = [{"role": "user", "content": "Guess a number up to 99."}], 0.0
        async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
            for _ in range(2):
                completion = await managed.chat_completion(messages=messages)
                guess = completion.choices[0].message.content.strip()
                if not guess.isdecimal() or len(guess) > 2:
                    break
                score = float(int(guess) == item["number"])
                hint = "Higher." if int(guess) < item["number"] else "Lower."
                messages += [
                    {"role": "assistant", "content": guess},
                    {"role": "user", "content": hint},
                ]
            node = managed.get_state()["nodes"][-1]
        return ScoredDataGroup(
            tokens=[node.tokens], masks=[node.masked_tokens], scores=[score]
        )
