"""Multi-turn tool use with an advantage per turn instead of per conversation (MT-GRPO).

    python environments/tool_use_turnlevel_advantage_server.py serve --env.dataset_path FILE

The replay and its reward come from ``tool_use_multiturn_server.py``. The advantage of every
token of turn t is A_turn(t) + outcome_weight * A_outcome. A_turn compares the turn with the
same turn of the other replays, A_outcome the whole conversations.
"""

import numpy as np
from pydantic import Field

from atroposlib.environments.tool_use_multiturn_server import ToolUseConfig, ToolUseEnv
from atroposlib.errors import InvalidGroup
from atroposlib.wire import MASKED

MIN_STD = 1e-8  # below this deviation values count as equal: their advantages are 0


class TurnLevelConfig(ToolUseConfig):
    """Settings of the conversations and of their advantages."""

    outcome_weight: float = Field(
        default=1.0, description="weight of the conversation's advantage added to the turn's"
    )


def standardise(values: list[float]) -> list[float]:
    """(value - mean) / standard deviation; zeros where all are equal."""
    spread = float(np.std(values))
    return [0.0 if spread < MIN_STD else (v - float(np.mean(values))) / spread for v in values]


def turn_advantages(turn_scores: list[list[float]], outcomes: list[float], weight: float):
    """An advantage per turn of each replay, compared with the replays that reached the turn.

    Scores [[1, 1], [0]] with outcomes [1, 0] and weight 1: the first turn is +1 or -1, as is
    the outcome. The second turn has no comparison: [[2, 1], [-2]].
    """
    of_outcome = standardise(outcomes)
    advantages: list[list[float]] = [[] for _ in turn_scores]
    for t in range(max(map(len, turn_scores))):
        takers = [g for g, scores in enumerate(turn_scores) if len(scores) > t]
        of_turn = standardise([turn_scores[g][t] for g in takers])
        for g, advantage in zip(takers, of_turn):
            advantages[g].append(advantage + weight * of_outcome[g])
    return advantages


def per_token(mask: list[int], of_turns: list[float], row: int) -> list[float]:
    """``of_turns`` spread over the trained tokens of ``mask`` (T,); 0.0 where not trained.

    A turn is a run of trained tokens, because template text separates two turns. Raises
    InvalidGroup: there are more runs than turns.
    """
    advantages, turn, inside = [], -1, False
    for label in mask:
        if label != MASKED and not inside:
            turn += 1
        inside = label != MASKED
        if turn >= len(of_turns):
            raise InvalidGroup(
                "advantages", f"[{row}]", f"only {len(of_turns)} turns were scored"
            )
        advantages.append(of_turns[turn] if inside else 0.0)
    return advantages


class TurnLevelToolUseEnv(ToolUseEnv):
    """Replays recorded conversations with an advantage per turn."""

    name = "turnlevel_tool_use"
    env_config_cls = TurnLevelConfig

    async def collect_trajectories(self, item):
        group, backlog = await super().collect_trajectories(item)
        if group is not None:
            of_turns = turn_advantages(
                [override["turn_scores"] for override in group["overrides"]],
                group["scores"],
                self.config.outcome_weight,
            )
            group["advantages"] = [
                per_token(mask, row, g)
                for g, (mask, row) in enumerate(zip(group["masks"], of_turns))
            ]
        return group, backlog


if __name__ == "__main__":
    TurnLevelToolUseEnv.cli()
