"""Small copy of a model's architecture: the same computation with fewer and smaller layers.

    configuration -> few layers, each kind included -> narrow MLPs, few words -> random weights

Measurements of a copy hold for the model of any size: the configuration names all that the
code decides by, and the copy keeps it except for sizes.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError

from atroposlib.errors import ConfigError
from example_trainer.model.scoring import decoder_layers

VOCABULARY = WIDTH = 64
LAYERS = 24  # maximum; Gemma 3 needs 6, Jamba 8
NARROWED = ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner")
# Errors of transformers for sizes that do not fit together.
UNFIT = (AssertionError, AttributeError, ConfigError, LookupError, RuntimeError,
         StrictDataclassError, TypeError, ValueError)  # fmt: skip


def miniature(build: Callable[[Any], Any], config: Any, whole: Any) -> Any | None:
    """A copy on the CPU with random weights; None if no copy has all kinds of layers.

    ``build`` makes a model of a configuration; ``whole`` is that of ``config``.
    """
    total, wanted = len(decoder_layers(whole)), kinds(whole)
    for layers in range(min(2, total), min(LAYERS, total) + 1):
        with contextlib.suppress(*UNFIT):
            small = shrunk(config, layers, total)
            with torch.device("meta"):
                made = build(small)
            if len(decoder_layers(made)) <= layers and kinds(made) == wanted:
                return _wild(build, small)
    return None


def shrunk(config: Any, layers: int, total: int) -> Any:
    """A configuration of the first ``layers`` of ``total``, narrow, with few words."""
    small = copy.deepcopy(config)
    text = small.get_text_config()
    for name, value in list(text.to_dict().items()):
        if isinstance(value, list) and len(value) == total:
            setattr(text, name, value[:layers])
        elif "token_id" in name and value is not None:
            setattr(text, name, 0)
        elif isinstance(value, int) and name.startswith("vocab_size"):
            setattr(text, name, min(value, VOCABULARY))
        elif isinstance(value, int) and name.endswith(NARROWED):
            setattr(text, name, min(value, WIDTH))
    text.num_hidden_layers = layers
    return small


def kinds(model: Any) -> set[Any]:
    """Traits of the layers, and of the rest of the model, without any size."""

    def is_switch(value: Any) -> bool:
        return isinstance(value, int) and value in (0, 1)

    def traits(module: Any) -> Any:
        """Class and attributes; of sizes and objects only their types."""
        return type(module), frozenset(
            (name, value if isinstance(value, str) or is_switch(value) else type(value))
            for name, value in vars(module).items()
            if name != "_is_hf_initialized" and "idx" not in name
        )

    layers = decoder_layers(model)
    inside = {module for layer in layers for module in layer.modules()}
    rest = [(name, module) for name, module in model.named_modules() if module not in inside]
    parts = [list(layer.named_modules()) for layer in layers] + [rest]
    return {tuple((name, traits(module)) for name, module in part) for part in parts}


@torch.no_grad()
def _wild(build: Callable[[Any], Any], config: Any) -> Any:
    """Weights so wide that attention is far from uniform, and no learned scale is 1."""
    width = config.get_text_config().hidden_size
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = build(config)
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=1.6 / width**0.5)
            else:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model
