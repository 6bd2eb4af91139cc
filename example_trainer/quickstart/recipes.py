"""Recipes and the plan of a quickstart: processes and their settings. Pure.

Recipe   what is learned and how: a recipe per model
Plan     the recipe with ports, paths and the exact command line of every process
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from atroposlib.errors import ConfigError
from atroposlib.run_status.sources import WatchedRun

GIGABYTE = 10**9


class ServingEngine(Enum):
    LOCAL = "local"  # atroposlib.inference, in this environment
    VLLM = "vllm"  # vLLM's CPU build, in a separate environment


@dataclass(frozen=True)
class Goal:
    """Criterion of learning: the expected first and last value of ``metric``; it has to rise."""

    metric: str  # a column of metrics.jsonl
    label: str
    starts_below: float = math.inf
    ends_above: float = -math.inf  # mean of the last LAST_STEPS steps


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Every hyper-parameter of a quickstart."""

    task: str
    reward: str  # the reward in words
    env_script: str
    goal: Goal
    steps: int
    groups_per_step: int
    group_size: int = 16
    microbatch_tokens: int  # tokens of a forward pass of the trainer
    learning_rate: float
    lr_decay_ratio: float  # final share of the steps, in which it falls to 0
    adam_beta2: float
    clip_eps_high: float
    entropy_coef: float
    ppo_epochs: int  # clipped passes over a batch
    seq_len: int  # tokens of prompt and completion together, at most
    # A group without spread has no gradient, but it counts in the curve.
    ensure_scores_are_not_same: bool = False
    steps_per_check: int = 10  # between held-out checks
    # Whether matrix products are most of its time; for a tiny model they are not.
    bfloat16_pays: bool = True
    checkpoint_bytes: int  # size of a saved model

    @property
    def sequences_per_step(self) -> int:
        return self.groups_per_step * self.group_size


SUMS = Recipe(
    task="sums of two one-digit numbers: “What is 4 + 3?” is answered “7”",
    reward="1 for exactly the number, at most 0.7 for a text around it",
    env_script="environments/arithmetic_server.py",
    goal=Goal("env/exact", "exact", starts_below=0.10, ends_above=0.80),
    steps=40,
    groups_per_step=8,
    microbatch_tokens=1024,
    learning_rate=2e-5,
    lr_decay_ratio=0.4,
    adam_beta2=0.999,
    clip_eps_high=0.28,
    entropy_coef=0.02,
    ppo_epochs=1,
    seq_len=64,
    checkpoint_bytes=int(0.66 * GIGABYTE),
)
COPY = Recipe(
    task="copying four letters, from a model of random weights",
    reward="share of the letters in their place; 1 is a perfect copy",
    env_script="environments/copy_server.py",
    goal=Goal("reward_mean", "reward", starts_below=0.10, ends_above=0.85),
    steps=36,
    # Few large groups: most of a step of this model is the HTTP of its requests.
    groups_per_step=16,
    group_size=32,
    microbatch_tokens=2048,
    learning_rate=4e-3,
    lr_decay_ratio=0.5,
    adam_beta2=0.95,
    clip_eps_high=0.2,
    entropy_coef=0.03,
    ppo_epochs=4,
    seq_len=32,
    bfloat16_pays=False,
    checkpoint_bytes=int(0.003 * GIGABYTE),
)
RECIPES = {"smollm2": SUMS, "tiny": COPY}


def recipe_for(
    model: str, steps: int | None = None, environment: Path | None = None, **own: Any
) -> Recipe:
    """Return the recipe of a named model, by default the sums; ``own`` is of ``environment``."""
    recipe = RECIPES.get(model, SUMS)
    size = own.get("group_size", recipe.group_size)
    own.setdefault("groups_per_step", max(1, recipe.sequences_per_step // size))
    if environment is not None:
        recipe = replace(
            recipe,
            task=f"what {environment.name} asks",
            reward=f"what {environment.name} returns",
            env_script=str(environment),
            goal=Goal("reward_mean", "reward"),
        )
    return replace(recipe, **own, steps=recipe.steps if steps is None else steps)


SIZES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "group_size": ("group_size", int),
    "max_token_length": ("seq_len", int),
    "ensure_scores_are_not_same": ("ensure_scores_are_not_same", "true".__eq__),
}


def sizes_of(settings: Settings) -> dict[str, Any]:
    """Fields of the recipe from settings of the environment, which the trainer shares.

    Raises ConfigError: a value cannot be used.
    """
    try:
        return {SIZES[k][0]: SIZES[k][1](value) for k, value in settings if k in SIZES}
    except ValueError as error:
        raise ConfigError(f"--env: {error}") from None


Settings = tuple[tuple[str, str], ...]  # names and values of flags, e.g. ("lr", "1e-5")


@dataclass(frozen=True)
class Options:
    """Options of the command line."""

    model: str
    engine: ServingEngine
    seed: int
    out: Path
    numbered: bool = False  # a number is added to the name of ``out`` if it is taken
    steps: int | None = None
    groups: int | None = None  # per step
    environment: Path | None = None  # a script in place of the recipe's
    live: bool = True
    browser: bool = False  # opens the page of the run
    dtype: str = "auto"  # float32, bfloat16, or by the processor
    restart_grace_s: float = 60.0
    api_port: int = 0  # 0: any free port
    server_port: int = 0
    env_settings: Settings = ()  # overrides of the recipe's settings
    trainer_settings: Settings = ()

    def passed_on(self, process: str) -> tuple[str, ...]:
        """Words for the command line of ``env`` or ``trainer``."""
        prefix = "--env." if process == "env" else "--"
        pairs = self.env_settings if process == "env" else self.trainer_settings
        return tuple(word for name, value in pairs for word in (prefix + name, value))


@dataclass(frozen=True)
class QuickstartPlan:
    """A recipe with the paths, ports and commands of this machine."""

    options: Options
    recipe: Recipe
    model_dir: Path  # initial weights of the trainer
    serve_dir: Path  # initial weights of the server; differ for vLLM, see models.untied_copy
    repo: Path
    cores: int
    api_port: int
    server_port: int
    engine_python: str = sys.executable
    dtype: str = "float32"  # dtype of matrix products; master weights are float32

    @property
    def api_url(self) -> str:
        return f"http://127.0.0.1:{self.api_port}"

    @property
    def server_url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def metrics_path(self) -> Path:
        return self.options.out / "metrics.jsonl"

    @property
    def heldout_dir(self) -> Path:
        return self.options.out / "heldout"

    @property
    def checkpoints(self) -> Path:
        return self.options.out / "checkpoints"

    def watched(self) -> WatchedRun:
        """Return what the live view shows."""
        return WatchedRun(
            name="atropos quickstart",
            title=f"{self.options.model} on {self.options.engine.value}",
            steps=self.recipe.steps,
            api_url=self.api_url,
            server_url=self.server_url,
            local_server=self.options.engine is ServingEngine.LOCAL,
            metrics_path=self.metrics_path,
            heldout_dir=self.heldout_dir,
            task=self.recipe.task,
            reward_words=self.recipe.reward,
        )

    def settings(self) -> dict[str, object]:
        """Return the settings for the report, complete enough to repeat the run."""
        return {
            "model": self.options.model,
            "engine": self.options.engine.value,
            "seed": self.options.seed,
            "cores": self.cores,
            "dtype": self.dtype,
            "python": sys.version.split()[0],
            **{name: value for name, value in asdict(self.recipe).items() if name != "goal"},
            **{f"env.{name}": value for name, value in self.options.env_settings},
            **{f"trainer.{name}": value for name, value in self.options.trainer_settings},
        }


def dtype_for(options: Options, recipe: Recipe, cpu_flags: Collection[str]) -> str:
    """The dtype of server and trainer: bfloat16 where the processor multiplies in it.

    Elsewhere bfloat16 is converted for every product and slower than float32. vLLM's CPU
    build stays at float32, in which its logprobs are checked against the trainer's.
    """
    if options.dtype != "auto":
        return options.dtype
    fast = {"avx512_bf16", "amx_bf16"} & set(cpu_flags) and recipe.bfloat16_pays
    return "bfloat16" if fast and options.engine is ServingEngine.LOCAL else "float32"


def disk_needed(recipe: Recipe) -> int:
    """Bytes a run writes: two published versions, a version being written, and the final model."""
    return 4 * recipe.checkpoint_bytes + 100 * 10**6
