"""Load a transformers model for training."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist

from atroposlib.errors import ConfigError
from atroposlib.utils.models.vision import language_model_class, picture_reader
from example_trainer.distributed.collectives import run_on_rank0
from example_trainer.distributed.ranks import Ranks
from example_trainer.model import adapter, frozen, fsdp, probing, sharded
from example_trainer.model.miniature import UNFIT, miniature
from example_trainer.model.policy import ModelFacts, PackedModel, Policy
from example_trainer.model.scoring import (
    Backbone,
    TokenModule,
    decoder_layers,
    inner_model,
)
from example_trainer.settings.batch import LoadSettings
from example_trainer.settings.model import ModelSettings

V = TypeVar("V")
P = TypeVar("P", bound=PackedModel)


def load_policy(settings: LoadSettings, world: Ranks | None = None) -> Policy:
    """Load model and tokenizer, and measure how its rows may be packed.

    Args:
        world: the ranks that train it. Given, the model also gets the adapter of the
            settings and is sharded over these ranks; each calls this. None: the model stays
            whole and as it was saved.

    Raises:
        ConfigError: the model cannot be loaded, lacks layers or modules of the settings, or
            changes its logits after its output head, or its routers cannot be replayed.
    """

    def prepare(model: Any) -> None:
        frozen.train_only_layers(model, settings.train_layer_indices)
        frozen.freeze_by_name(model, settings.freeze or ())
        checkpoint_activations(model, settings)
        if world is not None and settings.trains_adapter:
            adapter.wrap(model, settings)

    adapts = world is not None and settings.trains_adapter
    freezes = adapts or settings.train_layer_indices is not None or bool(settings.freeze)
    return _policy(settings, settings.model_name, world, prepare, freezes=freezes)


def load_reference(
    settings: LoadSettings, name: str | None = None, world: Ranks | None = None
) -> Policy:
    """Load the frozen model that the KL is measured to; its weights are of the compute dtype.

    Args:
        name: of the model; None: ``model_name``, as it is before training.
        world: as for :func:`load_policy`.
    """
    name = name or settings.model_name
    settings = settings.model_copy(update={"router_replay": False})
    return _policy(
        settings, name, world, lambda model: model.requires_grad_(False), freezes=True
    )


def _policy(
    settings: LoadSettings,
    name: str,
    world: Ranks | None,
    prepare: Callable[[Any], object],
    *,
    freezes: bool,
) -> Policy:
    from transformers import AutoConfig

    config = load_quietly(name, lambda: AutoConfig.from_pretrained(name))
    auto = language_model_class(config)
    blueprint = Blueprint(Policy, TokenModule, auto, settings, name)
    policy = packed_model(blueprint, world, prepare, freezes=freezes)[0]
    inner = inner_model(policy.model)
    policy.pictures = load_quietly(name, lambda: picture_reader(name, inner))
    return policy


@dataclass(frozen=True)
class Blueprint(Generic[P]):
    """Sources of a model: classes, settings, name, options."""

    kind: type[P]
    module: type[Backbone]
    auto: Any  # class of transformers
    settings: LoadSettings
    name: str
    options: dict[str, Any] = field(default_factory=dict)  # options of the configuration

    @property
    def compute_dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.settings.compute_dtype)
        return dtype

    def config(self) -> Any:
        from transformers import AutoConfig

        load = AutoConfig.from_pretrained
        return load_quietly(self.name, lambda: load(self.name, **self.options))

    def random_model(self, config: Any) -> Any:
        """A model of this shape with random weights."""
        return without_dropout(self.auto.from_config(config, dtype=torch.float32))

    def whole(self, device: str) -> tuple[Any, set[str]]:
        """The model in float32, and which of its direct modules lack a saved weight.

        Random weights are the same for the same seed: a reference starts where the policy does.
        """
        if self.settings.init_from_scratch:
            config = self.config()
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(self.settings.seed)
                model = self.random_model(config)
            return model.to(torch.device(device)), {name for name, _ in model.named_children()}
        # float32 parameters for any compute dtype: an update of 1e-6 of a bfloat16 weight
        # rounds to nothing.
        options = self.options | {"dtype": torch.float32, "output_loading_info": True}
        load = self.auto.from_pretrained
        model, report = load_quietly(self.name, lambda: load(self.name, **options))
        unsaved = {key.split(".")[0] for key in report["missing_keys"]}
        return without_dropout(model.to(torch.device(device))), unsaved

    def assemble(self, model: Any, device: str, world: Ranks | None = None) -> P:
        settings = self.settings
        return self.kind(
            self.module(model, self.compute_dtype),
            tokenizer(self.name),
            torch.device(device),
            settings.microbatch_tokens,
            max_tokens_per_row=min(settings.seq_len, probing.model_positions(model)),
            attention_crossover=attention_crossover(model),
            world=world or Ranks.single(device),
        )


def packed_model(
    blueprint: Blueprint[P],
    world: Ranks | None,
    prepare: Callable[[Any], object],
    *,
    freezes: bool = False,
) -> tuple[P, set[str]]:
    """A model with its tokenizer and the packing that it allows, sharded over ``world``.

    Args:
        prepare: called with the model before it is sharded.
        freezes: ``prepare`` freezes weights, which are then stored in the compute dtype.

    Returns:
        The model, and which of its direct modules lack a saved weight.
    """
    freezes = freezes and blueprint.compute_dtype is not torch.float32
    if world is not None and dist.is_initialized():
        return _load_sharded(blueprint, world, prepare, freezes)
    if freezes:
        return _partly_low(blueprint, prepare)
    device = blueprint.settings.device
    whole, unsaved = blueprint.whole(device)
    model = blueprint.assemble(whole, device)
    probing.probe(model, blueprint.settings)
    prepare(whole)
    return model, unsaved


def _partly_low(
    blueprint: Blueprint[P], prepare: Callable[[Any], object]
) -> tuple[P, set[str]]:
    """A model on a single device with its frozen weights in the compute dtype only.

    Packing is measured on a small copy: a probe compares in float32, for which the device may
    lack the memory.
    """
    config = blueprint.config()
    bare = sharded.without_weights(lambda: blueprint.random_model(config))
    facts = _measure(blueprint, config, bare)
    whole, unsaved = blueprint.whole("cpu")
    prepare(whole)
    frozen.hold_in(blueprint.compute_dtype, whole, sharded=False)
    device = blueprint.settings.device
    model = blueprint.assemble(whole.to(torch.device(device)), device)
    model.adopt(facts)
    return model, unsaved


def _load_sharded(
    blueprint: Blueprint[P], world: Ranks, prepare: Callable[[Any], object], freezes: bool
) -> tuple[P, set[str]]:
    settings = blueprint.settings
    config = blueprint.config()
    bare = sharded.without_weights(lambda: blueprint.random_model(config))
    facts = run_on_rank0(world, lambda: asdict(_measure(blueprint, config, bare)))
    with torch.device("meta"):  # device of a new adapter
        prepare(bare)
    if freezes:
        frozen.hold_in(blueprint.compute_dtype, bare, sharded=True)
    model = blueprint.assemble(bare, settings.device, world)
    fsdp.shard_model(model.module, settings, world)
    place = torch.device("cpu") if settings.cpu_offload else world.device
    saved_as = None if settings.init_from_scratch else blueprint.name
    unsaved = sharded.fill(bare, world, place, saved_as, lambda: blueprint.whole("cpu"))
    adapter.start_adapter(bare, world.share(settings.seed))
    model.adopt(ModelFacts(**facts))
    return model, unsaved


def _measure(blueprint: Blueprint[P], config: Any, bare: Any) -> ModelFacts:
    """How to set up a model that no rank has whole; without a small copy by the whole on the CPU."""
    small = miniature(blueprint.random_model, config, bare)
    with contextlib.suppress(*UNFIT):
        return probing.probe(blueprint.assemble(small, "cpu"), blueprint.settings)
    return probing.probe(
        blueprint.assemble(blueprint.whole("cpu")[0], "cpu"), blueprint.settings
    )


def tokenizer(name: str) -> Any:
    from transformers import AutoTokenizer

    return load_quietly(name, lambda: AutoTokenizer.from_pretrained(name))


def without_dropout(model: Any) -> Any:
    """Switch dropout off, whose noise would make the model another policy than the sampler."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)
    return model.eval()


def load_quietly(name: str, load: Callable[[], V]) -> V:
    """Result of ``load``, without progress bars; ConfigError if the model cannot be read."""
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
