"""Advantages and returns of tokens, by generalised advantage estimation, arXiv 1506.02438 eq. 16:

    rho_t = reward of token t (for example a KL), plus the row's advantage at its last token
    delta_t = rho_t + gamma V_t+1 - V_t          V after the last token is 0
    A_t = delta_t + gamma lambda A_t+1
    return_t = A_t + V_t                         target of the critic

Only trained tokens are steps: discounts skip the text of a user or a tool between two
turns. Gamma and lambda apply to ``advantage gae``; the rest of the estimators have 1 and 1, so
every token gets the advantage of its row, plus the token rewards from there on.
"""

from __future__ import annotations

from collections.abc import Sequence

from example_trainer.settings.loss import AdvantageSettings


def token_advantages(
    advantages_R: Sequence[float],
    lengths_R: Sequence[int],
    settings: AdvantageSettings,
    *,
    token_rewards_R_T: Sequence[Sequence[float]] | None = None,
    values_R_T: Sequence[Sequence[float]] | None = None,
) -> tuple[list[list[float]], list[list[float]]]:
    """Advantages and returns of every trained token, both (R, T) ragged.

    Args:
        advantages_R: advantages of rows, from ``compute``.
        lengths_R: trained tokens of each row.
        token_rewards_R_T: on top, per trained token.
        values_R_T: of the critic before this batch; without a critic, 0.

    Raises:
        ValueError: the lists differ in length.
    """
    gamma, lam = 1.0, 1.0
    if settings.advantage == "gae":
        gamma, lam = settings.gamma, settings.gae_lambda
    advantages_R_T, returns_R_T = [], []
    for i, (final, length) in enumerate(zip(advantages_R, lengths_R, strict=True)):
        rewards_T = (
            list(token_rewards_R_T[i]) if token_rewards_R_T is not None else [0.0] * length
        )
        values_T = values_R_T[i] if values_R_T is not None else [0.0] * length
        if rewards_T:
            rewards_T[-1] += final
        advantages_T = _gae(rewards_T, values_T, gamma, lam)
        if len(advantages_T) != length:
            raise ValueError(f"row {i}: {len(advantages_T)} token rewards, {length} tokens")
        advantages_R_T.append(advantages_T)
        returns_R_T.append([a + v for a, v in zip(advantages_T, values_T)])
    return advantages_R_T, returns_R_T


def _gae(
    rewards_T: Sequence[float], values_T: Sequence[float], gamma: float, lam: float
) -> list[float]:
    advantage, next_value = 0.0, 0.0
    backwards = []
    for reward, value in zip(reversed(rewards_T), reversed(values_T), strict=True):
        advantage = reward + gamma * next_value - value + gamma * lam * advantage
        next_value = value
        backwards.append(advantage)
    return backwards[::-1]
