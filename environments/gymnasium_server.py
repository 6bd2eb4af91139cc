"""Gymnasium environments shown as text and played turn by turn.

    python environments/gymnasium_server.py serve --env.env_id Taxi-v4
    python environments/gymnasium_server.py process --env.env_id FrozenLake-v1 \\
        --env.env_kwargs '{"is_slippery": false}'

A turn shows what the environment renders (its "ansi" mode where it has one) and the actions;
the model's last <action> names the next one. Every episode of a group starts from the same
seed. Needs gymnasium: pip install 'atroposlib[examples]'.
"""

import asyncio
import time
from enum import Enum
from typing import Any

from pydantic import Field

from atroposlib.environments.common.rollouts import SampledConfig, SequentialEnv, mean
from atroposlib.environments.common.text_game import Game, chosen_action, legend
from atroposlib.envs.rollout.groups import from_node
from atroposlib.errors import ConfigError
from atroposlib.utils.gathering import gather_bounded

SYSTEM_PROMPT = (
    "You play {env_id}. In every turn you see the state and choose one action. Think briefly if "
    "you like, then end with the action in tags, such as <action>{example}</action>.\n"
    "Actions: {actions}\n{legend}"
)
EVAL_SEEDS = 1_000_000  # smaller seeds are evaluated, larger ones trained


class Illegal(str, Enum):
    """Reaction to a reply without a legal action."""

    END = "end"  # the episode ends
    ASK_AGAIN = "ask_again"  # the turn is lost, and the next message lists the actions


class Reward(str, Enum):
    """Score of an episode, from its rewards."""

    DISCOUNTED = "discounted"  # r_0 + discount r_1 + discount^2 r_2 ...
    FINAL = "final"  # the last one, such as reaching the goal


class GymnasiumConfig(SampledConfig):
    """Settings of the game."""

    group_size: int = Field(
        default=8, ge=1, description="episodes from one seed, scored together"
    )
    max_token_length: int = Field(default=4096, ge=1, description="most tokens of an episode")
    env_id: str = Field(default="FrozenLake-v1", description="as gymnasium registers it")
    env_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="arguments of gymnasium.make"
    )
    action_names: list[str] | None = Field(
        default=None, description="words for actions 0, 1, ...; None: known ones, else numbers"
    )
    max_turns: int = Field(default=30, ge=1, description="most turns of an episode")
    max_turn_tokens: int = Field(default=128, ge=1, description="most tokens of one turn")
    reward: Reward = Field(default=Reward.DISCOUNTED, description="discounted or final")
    discount: float = Field(default=0.99, ge=0, le=1, description="per turn")
    illegal_action: Illegal = Field(default=Illegal.END, description="end or ask_again")
    illegal_reward: float = Field(default=-1.0, description="reward of a turn without action")
    eval_episodes: int = Field(default=32, ge=1, description="episodes evaluated")


def score(rewards: list[float], reward: Reward, discount: float) -> float:
    """An episode's score; [0, 0, 1] with discount 0.5 is 0.25 discounted and 1.0 final."""
    if reward is Reward.FINAL:
        return rewards[-1]
    return sum(discount**t * r for t, r in enumerate(rewards))


class GymnasiumEnv(SequentialEnv):
    """Lets the model play and scores the episode by the environment's own rewards."""

    name = "gymnasium"
    env_config_cls = GymnasiumConfig

    async def setup(self):
        # Made once here, so that a wrong id fails before the first rollout.
        self.names = (await asyncio.to_thread(self.new_game)).names

    async def get_next_item(self):
        seed = EVAL_SEEDS + 10_000_000 * self.config.seed + self.iter
        self.iter += 1
        return {"id": f"{self.config.env_id}/{seed}", "seed": seed}

    def new_game(self):
        config = self.config
        return Game(config.env_id, config.env_kwargs, config.action_names)

    def opening(self):
        actions = ", ".join(f"{name} ({i})" for i, name in enumerate(self.names))
        content = SYSTEM_PROMPT.format(
            env_id=self.config.env_id,
            example=self.names[0],
            actions=actions,
            legend=legend(self.config.env_id),
        )
        return [{"role": "system", "content": content}]

    async def play(self, seed, temperature, split):
        """One episode: (node, rewards of its turns, whether a reply was illegal, messages)."""
        config, game = self.config, await asyncio.to_thread(self.new_game)
        messages, rewards, illegal, node = self.opening(), [], False, None
        state, note = await asyncio.to_thread(game.start, seed), ""
        async with self.server.managed_server(
            tokenizer=self.tokenizer, preserve_think_blocks=True
        ) as managed:
            for _ in range(config.max_turns):
                messages.append({"role": "user", "content": note + state})
                turn = await self.next_turn(managed, messages, node, temperature, split)
                if turn is None:
                    break
                choice, node = turn
                reply = choice.message.content or ""
                messages.append({"role": "assistant", "content": reply})
                action = chosen_action(reply, game.names)
                if action is not None:
                    state, reward, over = await asyncio.to_thread(game.step, action)
                    rewards.append(reward)
                    note = ""
                else:
                    illegal, over = True, config.illegal_action is Illegal.END
                    rewards.append(config.illegal_reward)
                    note = f"That named no action. Actions: {', '.join(game.names)}\n\n"
                if over:
                    break
            if not rewards:
                raise ConfigError(
                    f"--env.max_token_length {config.max_token_length} has no room for a turn"
                )
            return node, rewards, illegal, messages

    async def collect_trajectory(self, item):
        config = self.config
        node, rewards, illegal, messages = await self.play(
            item["seed"], config.temperature, "train"
        )
        scored = from_node(
            node,
            score(rewards, config.reward, config.discount),
            messages=messages if config.include_messages else None,
            metrics={"return": sum(rewards), "turns": len(rewards), "illegal": illegal},
        )
        return scored, []

    async def evaluate(self, *args, **kwargs):
        started, config = time.time(), self.config

        async def one(seed):
            _, rewards, illegal, messages = await self.play(
                seed, config.eval_temperature, "eval"
            )
            return {
                "seed": seed,
                "messages": messages,
                "score": score(rewards, config.reward, config.discount),
                "return": sum(rewards),
                "turns": len(rewards),
                "illegal": illegal,
            }

        seeds = range(config.eval_episodes)
        samples = await gather_bounded(seeds, one, config.max_eval_workers)
        names = ("score", "return", "turns", "illegal")
        await self.evaluate_log(
            {name: mean(sample[name] for sample in samples) for name in names},
            start_time=started,
            generation_parameters={"temperature": config.eval_temperature},
            samples=samples,
        )


if __name__ == "__main__":
    GymnasiumEnv.cli()
