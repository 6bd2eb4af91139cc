"""Similarity reward: cosine of the embeddings of the text and the solution."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atroposlib.envs.reward_fns.registry import registry
from atroposlib.envs.reward_fns.reward_function import RewardFunction, reference_answers
from atroposlib.errors import ConfigError

MAX_TOKENS = 512  # limit of a text; encoders of this kind were trained on no more
MODELS_KEPT = 2


@registry.register("cosine_scaled")
class CosineScaledReward(RewardFunction):
    """``1 - scale_factor * (1 - cosine similarity)``, kept in min_reward..max_reward.

    A text that is empty or has no solution gets ``default_reward``. Needs torch
    (``pip install atropos-rl[rewardfns]``) and the model, loaded at the first call.

    Args:
        model_name: model directory or hub name of an encoder.
    """

    def __init__(
        self,
        model_name: str = "sentence-transformers/all-MiniLM-L6-v2",
        scale_factor: float = 1.0,
        min_reward: float = -1.0,
        max_reward: float = 1.0,
        default_reward: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.model_name = model_name
        self.scale_factor = scale_factor
        self.min_reward = min_reward
        self.max_reward = max_reward
        self.default_reward = default_reward

    def compute(
        self,
        completions: Sequence[Any],
        solution: Any = None,
        ground_truth: Any = None,
        **kwargs: Any,
    ) -> list[float]:
        """The score of each; ``ground_truth`` stands in for ``solution``."""
        golds = reference_answers(len(completions), solution, ground_truth)
        pairs = [
            (text, gold)
            for text, gold in zip(map(self.get_content, completions), golds)
            if text.strip() and gold and gold.strip()
        ]
        if not pairs:
            return [self.default_reward] * len(completions)
        unique = list(dict.fromkeys(text for pair in pairs for text in pair))
        vectors = dict(zip(unique, embed(unique, self.model_name)))
        scored = {pair: self._score(vectors[pair[0]], vectors[pair[1]]) for pair in pairs}
        return [
            scored.get((self.get_content(completion), gold or ""), self.default_reward)
            for completion, gold in zip(completions, golds)
        ]

    def _score(self, text: NDArray[np.float32], gold: NDArray[np.float32]) -> float:
        similarity = float(text @ gold / (np.linalg.norm(text) * np.linalg.norm(gold)))
        score = 1.0 - self.scale_factor * (1.0 - similarity)
        return min(self.max_reward, max(self.min_reward, score))


cosine_scaled_reward = CosineScaledReward.scores


def embed(texts: Sequence[str], model_name: str) -> NDArray[np.float32]:
    """Vectors of the texts, (N, D): per text the mean of the last hidden states of its tokens.

    Raises ConfigError: torch is not installed.
    """
    tokenizer, model = _load_model(model_name)
    import torch

    inputs = tokenizer(
        list(texts),
        padding=True,
        truncation=True,
        max_length=MAX_TOKENS,
        return_tensors="pt",
        return_token_type_ids=False,
    )
    with torch.no_grad():
        hidden = model(**inputs).last_hidden_state  # (N, T, D)
    present = inputs["attention_mask"].unsqueeze(-1)  # (N, T, 1)
    means = (hidden * present).sum(1) / present.sum(1).clamp(min=1)
    vectors: NDArray[np.float32] = means.float().numpy()
    return vectors


@lru_cache(maxsize=MODELS_KEPT)
def _load_model(model_name: str) -> tuple[Any, Any]:
    try:
        import torch  # noqa: F401  (transformers imports without it and then has no models)
    except ImportError as error:
        raise ConfigError(
            "cosine_scaled needs torch: pip install 'atropos-rl[rewardfns]'"
        ) from error
    from transformers import AutoModel, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model_name)
    model: Any = AutoModel.from_pretrained(model_name)
    return tokenizer, model.eval()
