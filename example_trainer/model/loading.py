"""Load a transformers model for training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from atroposlib.errors import ConfigError
from example_trainer.distributed.ranks import Ranks
from example_trainer.model import adapter, fsdp, probing
from example_trainer.model.policy import PackedModel, Policy
from example_trainer.model.scoring import (
    Backbone,
    TokenModule,
    decoder_layers,
)
from example_trainer.settings.batch import LoadSettings
from example_trainer.settings.model import ModelSettings

V = TypeVar("V")
P = TypeVar("P", bound=PackedModel)


def load(settings: LoadSettings, world: Ranks | None = None) -> Policy:
    """Load model and tokenizer, and measure how its rows may be packed.

    Args:
        world: the ranks that train it. Given, the model also gets the adapter of the
            settings and is sharded over them; every rank calls this. None: the model stays
            whole and as it was saved.

    Raises:
        ConfigError: the model cannot be loaded, lacks layers or modules of the settings, or
            changes its logits after its output head.
    """
    policy = _policy(settings, settings.model_name)
    freeze_other_layers(policy.model, settings.train_layer_indices)
    checkpoint_activations(policy.model, settings)
    if world is not None:
        if settings.trains_adapter:
            adapter.wrap(policy.model, settings)
        fsdp.shard(policy, settings, world)
    return policy


def load_reference(
    settings: LoadSettings, name: str | None = None, world: Ranks | None = None
) -> Policy:
    """Load the frozen model that the KL is measured to.

    Args:
        name: of the model; None: ``model_name``, as it is before training.
        world: as for :func:`load`.
    """
    policy = _policy(settings, name or settings.model_name)
    policy.model.requires_grad_(False)
    if world is not None:
        fsdp.shard(policy, settings, world)
    return policy


def _policy(settings: LoadSettings, name: str) -> Policy:
    from transformers import AutoModelForCausalLM

    model, _ = initial_model(AutoModelForCausalLM, settings, name)
    module = TokenModule(model, getattr(torch, settings.compute_dtype))
    policy = packed_model(Policy, module, settings, name)
    probing.check_head(policy)
    return policy


def packed_model(kind: type[P], module: Backbone, settings: LoadSettings, name: str) -> P:
    """The model with its tokenizer and the packing that it allows."""
    model = kind(
        module,
        tokenizer(name),
        torch.device(settings.device),
        settings.microbatch_tokens,
        max_tokens_per_row=min(settings.seq_len, probing.model_positions(module.model)),
        attention_crossover=attention_crossover(module.model),
    )
    probing.choose_packing(model, settings)
    return model


def tokenizer(name: str) -> Any:
    from transformers import AutoTokenizer

    return loaded(name, lambda: AutoTokenizer.from_pretrained(name))


def initial_model(
    kind: Any, settings: ModelSettings, name: str, **options: Any
) -> tuple[Any, set[str]]:
    """A model on the device, without dropout, with float32 parameters.

    Random weights are the same for the same seed: a reference starts where the policy does.

    Args:
        kind: auto class of transformers; ``options`` go into the config.

    Returns:
        The model, and which of its direct modules lack a saved weight.
    """
    from transformers import AutoConfig

    if settings.init_from_scratch:
        config = loaded(name, lambda: AutoConfig.from_pretrained(name, **options))
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(settings.seed)
            model = kind.from_config(config, dtype=torch.float32)
        unsaved = {module for module, _ in model.named_children()}
    else:
        # float32 parameters for any compute dtype: an update of 1e-6 of a bfloat16 weight
        # rounds to nothing.
        options |= {"dtype": torch.float32, "output_loading_info": True}
        model, report = loaded(name, lambda: kind.from_pretrained(name, **options))
        unsaved = {key.split(".")[0] for key in report["missing_keys"]}
    return without_dropout(model.to(torch.device(settings.device))), unsaved


def without_dropout(model: Any) -> Any:
    """Switch dropout off, whose noise would make the model another policy than the sampler."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)
    return model.eval()


def loaded(name: str, load: Callable[[], V]) -> V:
    """What ``load`` returns, without progress bars; ConfigError if the model cannot be read."""
    from transformers.utils import logging as reports

    reports.disable_progress_bar()  # type: ignore[no-untyped-call, unused-ignore]
    verbosity = reports.get_verbosity()
    reports.set_verbosity(logging.ERROR)
    try:
        return load()
    except (OSError, ValueError) as error:
        raise ConfigError(f"model {name!r} cannot be loaded: {error}") from error
    finally:
        reports.set_verbosity(verbosity)


def freeze_other_layers(model: Any, indices: Sequence[int] | None) -> None:
    """Make only these decoder layers trainable, None: all; ConfigError if one is absent."""
    if indices is None:
        return
    layers = decoder_layers(model)
    if wrong := [i for i in indices if not 0 <= i < len(layers)]:
        raise ConfigError(f"train_layer_indices {wrong}: the model has {len(layers)} layers")
    model.requires_grad_(False)
    for i in indices:
        layers[i].requires_grad_(True)


def checkpoint_activations(model: Any, settings: ModelSettings) -> None:
    """Compute activations again in the backward pass, by ``gradient_checkpointing``."""
    wanted = settings.gradient_checkpointing
    if not (settings.on_cuda if wanted is None else wanted):
        return
    # Named so since transformers 5.23; the older name goes with version 6.
    older, newer = "gradient_checkpointing_enable", "activation_checkpointing_enable"
    getattr(model, newer if hasattr(model, newer) else older)({"use_reentrant": False})
    # Only where layers ask for it: in training mode routers add noise to their inputs.
    for module in model.modules():
        module.training = hasattr(module, "gradient_checkpointing")


def attention_crossover(model: Any) -> float:
    """Tokens of context at which attention costs as much as all matrices of the layers.

    Per token 2 x parameters FLOPs against 4 x layers x hidden size FLOPs per key.
    """
    config = model.config.get_text_config()
    matrices = sum(p.numel() for p in decoder_layers(model).parameters())
    return float(matrices / (2 * config.num_hidden_layers * config.hidden_size))
