"""Model directories that are either whole or absent.

A directory is written beside its final place and renamed, so a reader never sees half of
one. It holds the weights as safetensors, config, tokenizer, and ``trainer_state.json``.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from atroposlib.errors import ConfigError
from example_trainer.model import Policy

STATE_FILE = "trainer_state.json"


@dataclass(frozen=True)
class TrainerState:
    """Which batches the weights in a directory have been trained on."""

    run_id: str
    step: int
    version: int
    batch_no: int | None  # the last one

    def has_trained(self, run_id: str, batch_no: int) -> bool:
        """Batches are numbered in the order in which they are trained."""
        return (
            run_id == self.run_id and self.batch_no is not None and batch_no <= self.batch_no
        )


def read_state(model_name: str) -> TrainerState | None:
    """The state beside a model the trainer itself wrote; None for any other model.

    Raises:
        ConfigError: the file is there but cannot be read.
    """
    path = Path(model_name) / STATE_FILE
    if not path.is_file():
        return None
    try:
        return TrainerState(**json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path} is not a trainer state ({error}); remove it") from error


def save_model(
    policy: Policy,
    directory: Path,
    state: TrainerState,
    *,
    untie_head: bool = False,
    durable: bool = True,
) -> Path:
    """Write the model whole into ``directory``, in the compute dtype.

    Args:
        untie_head: write a tied output head as a tensor of its own, for engines that do
            not refresh a tied one on reload.
        durable: wait until the disk has it. Without, it survives the death of this process
            but not that of the machine.
    """
    with whole_directory(directory, durable=durable) as draft:
        policy.model.save_pretrained(draft, state_dict=_weights(policy, untie_head))
        policy.tokenizer.save_pretrained(draft)
        _patch_config(draft / "config.json", policy.compute_dtype, untie_head)
        (draft / STATE_FILE).write_text(json.dumps(asdict(state)))
    return directory


def untied_copy(model: str, directory: Path) -> Path:
    """A copy of a model whose output head is no longer tied to its embedding.

    Start vLLM from such a copy when the trainer publishes untied weights to it.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = AutoModelForCausalLM.from_pretrained(model)
    policy = Policy(
        loaded, AutoTokenizer.from_pretrained(model), torch.device("cpu"), loaded.dtype, 1
    )
    return save_model(policy, directory, TrainerState("", 0, 0, None), untie_head=True)


def is_tied(policy: Policy) -> bool:
    embedding, head = policy.model.get_input_embeddings(), policy.model.get_output_embeddings()
    return embedding.weight is head.weight


def _weights(policy: Policy, untie_head: bool) -> dict[str, torch.Tensor]:
    cast: dict[int, torch.Tensor] = {}  # tied tensors stay one tensor, so that one is written
    weights = {}
    for name, tensor in policy.model.state_dict().items():
        key = tensor.data_ptr()
        if key not in cast:
            floating = tensor.is_floating_point()
            cast[key] = tensor.to(policy.compute_dtype) if floating else tensor
        weights[name] = cast[key]
    if untie_head:
        head = policy.model.get_output_embeddings().weight
        for name, parameter in policy.model.named_parameters(remove_duplicate=False):
            if parameter is head and "embed" not in name:
                weights[name] = weights[name].clone()
    return weights


def _patch_config(path: Path, dtype: torch.dtype, untie_head: bool) -> None:
    config: dict[str, Any] = json.loads(path.read_text())
    config["dtype"] = str(dtype).removeprefix("torch.")
    if untie_head:
        config["tie_word_embeddings"] = False
    path.write_text(json.dumps(config, indent=2))


@contextmanager
def whole_directory(final: Path, *, durable: bool) -> Iterator[Path]:
    """A draft directory that takes the place of ``final`` when the block ends well."""
    final.parent.mkdir(parents=True, exist_ok=True)
    draft = final.with_name(f".{final.name}.draft")
    replaced = final.with_name(f".{final.name}.replaced")
    for leftover in (draft, replaced):
        shutil.rmtree(leftover, ignore_errors=True)
    draft.mkdir()
    yield draft
    if durable:
        for path in (*draft.iterdir(), draft):
            _sync(path)
    if final.exists():
        final.rename(replaced)
    draft.rename(final)
    if durable:
        _sync(final.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def keep_newest(directory: Path, pattern: str, count: int) -> None:
    """Delete all but the ``count`` highest-numbered directories that match ``pattern``."""
    numbered = sorted(directory.glob(pattern), key=lambda path: int(path.name.split("_")[-1]))
    for path in numbered[:-count]:
        shutil.rmtree(path, ignore_errors=True)
