"""GRPOTrainer of TRL on the batches of the rollout API.

    claim -> rows -> TRL's steps on rows -> publish -> ack -> TRL's checkpoint -> commit

TRL keeps its loss, optimizer, checkpoints and trackers; prompts, samples and rewards come from the
environments. A call of TRL's ``rollout_func`` is a batch, whose lease is held until its last
step is done and published. The recorded logprobs are TRL's ``old_per_token_logps``, so its clipped
ratio is that of the policy and the sampler, at any age of a sample. Needs the extra ``trl``;
``rollout_func`` is experimental in TRL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from atroposlib.errors import AtroposError, ConfigError
from example_trainer.exchange.link import Link, ModelWeights, held_by
from example_trainer.exchange.rows import trl_fields
from example_trainer.settings.config import TrainingConfig


def recorded_score(completions: list[Any], recorded_score: list[Any], **_: Any) -> list[Any]:
    """The scores of the environments as a reward function of TRL; None: no score."""
    return recorded_score


@dataclass(frozen=True)
class Sizes:
    """Sequences of a batch and of this process, optimizer steps on a batch, batches of the run."""

    sequences: int
    own: int
    steps: int
    batches: int


def batch_sizes_of(args: GRPOConfig) -> Sizes:
    """The sizes that TRL's settings amount to.

    Raises:
        ConfigError: TRL would step, save or end in the middle of a batch.
    """
    passes = args.steps_per_generation * args.num_iterations
    steps, rest = divmod(passes, args.gradient_accumulation_steps)
    if rest:
        raise ConfigError(
            f"a batch has {passes} forward passes (steps_per_generation x num_iterations): they"
            f" have to be a multiple of gradient_accumulation_steps {args.gradient_accumulation_steps}"
        )
    own = args.per_device_train_batch_size * args.steps_per_generation
    if own % args.num_generations:
        raise ConfigError(
            f"{own} sequences of a process (per_device_train_batch_size x steps_per_generation)"
            f" have to be whole groups of num_generations {args.num_generations}"
        )
    saves = args.save_steps if args.save_strategy == "steps" else steps
    for name, value in (("max_steps", args.max_steps), ("save_steps", saves)):
        if value < steps or value % steps:
            raise ConfigError(f"{name} has to be a multiple of {steps}, the steps on a batch")
    if args.use_vllm:
        raise ConfigError("use_vllm has to be False: the servers of inference_urls sample")
    return Sizes(own * args.world_size, own, steps, args.max_steps // steps)


class QueueTrainer(GRPOTrainer):  # type: ignore[misc]
    """GRPOTrainer of TRL on the batches of a rollout API.

    ``args`` decide as always, but for sampling, which is the environments'; ``num_generations`` is
    their group size and ``temperature`` theirs. ``train(resume_from_checkpoint=)`` goes on from a
    checkpoint in ``output_dir``: batches trained after it come again, in their order.

    Args:
        model: name or directory; the servers hold the same.
        settings: of the connection, by their names in CONFIG.md: ``atropos_url``,
            ``inference_urls``, ``seq_len``, ``max_staleness``, ``publish_dir``, ...

    Raises:
        ConfigError: settings do not fit; the message names the settings.
    """

    def __init__(
        self, model: str, args: GRPOConfig, *, settings: Mapping[str, Any], **options: Any
    ) -> None:
        self.sizes = sizes = batch_sizes_of(args)
        if options.get("peft_config") is not None:
            raise ConfigError("peft_config: only whole models are published here")
        own = {"model_name": model, "save_path": str(args.output_dir), **settings}
        own |= {"training_steps": sizes.batches, "batch_size": sizes.sequences}
        self.connection = {**own, "gradient_accumulation_steps": 1}
        TrainingConfig(**self.connection)  # refuses wrong settings before the model is loaded
        self.link: Link | None = None  # first process only, while it trains
        super().__init__(
            model=model,
            args=args,
            reward_funcs=recorded_score,
            train_dataset=Dataset.from_dict(
                {"prompt": [""] * (sizes.sequences * sizes.batches)}
            ),
            rollout_func=lambda prompts, trainer: self._rollouts(len(prompts)),
            **options,
        )
        self.add_callback(_Boundaries(self))

    def train(self, *args: Any, **options: Any) -> Any:
        """Train as TRL does. Raises AtroposError, which names the remedy."""
        try:
            done = super().train(*args, **options)
            if self.link is not None:
                self.link.waits.phase("done")
            return done
        finally:
            if self.link is not None:
                self.link.close()

    # --- called by the callback, on every process ------------------------------------

    def begin(self) -> None:
        """Join the run where the loaded weights were saved; publish the weights."""

        def join(weights: ModelWeights) -> None:
            held = held_by(self._checkpoint if self.state.global_step else None)
            self.link = Link(self.connection, held, Path(self.args.output_dir))
            self.link.publish(weights)

        self._with_weights(join)

    def step_done(self) -> None:
        if self.state.global_step % self.sizes.steps == 0:
            self._with_weights(lambda weights: self._joined.done(weights))

    def saved(self) -> None:
        self._on_first(lambda: self._joined.saved(self._checkpoint))

    @property
    def _checkpoint(self) -> Path:
        """The checkpoint of the last step, as transformers names it."""
        return Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"

    # --- the first process, and the rest ----------------------------------------------

    @property
    def _joined(self) -> Link:
        assert self.link is not None
        return self.link

    def _with_weights(self, action: Callable[[ModelWeights], None]) -> None:
        """Call with the gathered weights on the first process; all wait for it."""
        accelerator, tokenizer = self.accelerator, self.processing_class
        tensors = accelerator.get_state_dict(self.model_wrapped)
        model = accelerator.unwrap_model(self.model_wrapped)
        self._on_first(lambda: action(ModelWeights(model, tokenizer, tensors)))

    def _on_first(self, work: Callable[[], Any]) -> Any:
        """The result of the first process, on all; an error there is raised on all."""
        outcome: list[Any] = [None, ""]  # the result, and what went wrong
        if self.accelerator.is_main_process:
            try:
                outcome[0] = work()
            except AtroposError as error:
                if self.accelerator.num_processes > 1:  # further processes wait for it
                    broadcast_object_list([None, f"{type(error).__name__}: {error}"])
                raise
        if self.accelerator.num_processes > 1:
            broadcast_object_list(outcome)
        if outcome[1]:
            raise AtroposError(f"the first process gave up: {outcome[1]}")
        return outcome[0]

    # --- a batch ------------------------------------------------------------------------

    def _rollouts(self, wanted: int) -> dict[str, list[Any]]:
        """``rollout_func``: this process's share of the next batch."""
        if not self.model.training:
            raise ConfigError(
                "held-out tasks are evaluated by the environment, or atropos eval"
            )
        if wanted != self.sizes.own:
            raise ConfigError(
                f"TRL asks for {wanted} sequences, and {self.sizes.own} were due"
            )
        group_size, temperature = self.args.num_generations, self.args.temperature

        def fields() -> dict[str, list[Any]]:
            groups, rows = self._joined.next_rows()
            return trl_fields(groups, rows, group_size, temperature)

        start = self.accelerator.process_index * wanted
        shared = self._on_first(fields)
        return {name: values[start : start + wanted] for name, values in shared.items()}

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        output["old_per_token_logps"] = output["sampling_per_token_logps"]
        return output


class _Boundaries(TrainerCallback):
    """Calls the trainer where a run begins, a step ends and a checkpoint is written."""

    def __init__(self, trainer: QueueTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._trainer.begin()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._trainer.step_done()

    def on_save(self, *_: Any, **__: Any) -> None:
        self._trainer.saved()
