"""Parts of a transformers causal language model: decoder, and what follows its output head.

    hidden = decoder(tokens)        products = W hidden + b
    logits = cap tanh(scale products / cap)        without a cap: scale products

Granite and Cohere scale, Gemma 2 caps; the rest has scale 1 and no cap. Configurations name
the numbers, not their use (Granite divides by ``logits_scaling``, HyperCLOVAX
multiplies), so the model's own logits decide.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from atroposlib.errors import ConfigError

SCALES = ("logits_scaling", "logit_scale", "lm_head_multiplier", "output_multiplier")
CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
# Products beyond any cap in use (Gemma's is 30), so that a cap shows.
LARGE = 100.0


@dataclass(frozen=True)
class LogitTransform:
    """From the products of the output head to logits."""

    scale: float = 1.0
    cap: float | None = None

    def __call__(self, products: Any) -> Any:
        """Logits of a tensor of products."""
        scaled = products if self.scale == 1 else products * self.scale
        return scaled if self.cap is None else self.cap * (scaled / self.cap).tanh()


def decoder(model: Any) -> Any:
    """The module from tokens to hidden states; ConfigError if the model has none."""
    inner = model.get_decoder()
    if inner is model:  # Llama 4's text model does not name it
        inner = getattr(model, "model", model)
    if inner is model:
        raise ConfigError(f"{type(model).__name__} has no decoder apart from its output head")
    return inner


def measured_transform(model: Any, tokens: Any, tolerance: float) -> LogitTransform | None:
    """The transform that gives the model's own logits, of small and large products alike.

    Args:
        tokens: (1, T).
        tolerance: of a logprob, as a share of the largest product.

    Returns:
        None if no transform with numbers of the configuration does.
    """
    hidden, own = _amplify(model, tokens, 1.0)
    head = model.get_output_embeddings()
    gain = LARGE / max(head(hidden).abs().max().item(), 1e-6)
    pairs = [(head(hidden).float(), own)]
    hidden, own = _amplify(model, tokens, gain)
    pairs.append((head(hidden).float(), own))

    def fits(transform: LogitTransform) -> bool:
        return all(
            bool(
                (transform(products).log_softmax(-1) - own.float().log_softmax(-1)).abs().max()
                <= tolerance * products.abs().max()
            )
            for products, own in pairs
        )

    return next(filter(fits, _stated_logits(model.config.get_text_config())), None)


def _stated_logits(config: Any) -> Iterator[LogitTransform]:
    """Transforms with the configuration's numbers; the identity first."""
    scales = [value for name in SCALES if (value := getattr(config, name, None))]
    either_way = [1.0, *scales, *(1 / value for value in scales)]
    caps = [None, *(value for name in CAPS if (value := getattr(config, name, None)))]
    return (LogitTransform(scale, cap) for cap, scale in product(caps, either_way))


def _amplify(model: Any, tokens: Any, gain: float) -> tuple[Any, Any]:
    """Hidden states (1, T, D) times ``gain``, and the model's own logits (1, T, V)."""
    seen = []

    def amplify(module: Any, inputs: Any, output: Any) -> Any:
        output.last_hidden_state = output.last_hidden_state * gain
        seen.append(output.last_hidden_state)
        return output

    handle = decoder(model).register_forward_hook(amplify)
    try:
        logits = model(tokens, use_cache=False).logits
    finally:
        handle.remove()
    return seen[0], logits
