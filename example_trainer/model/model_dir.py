"""Model directories, written atomically.

A directory is written under a hidden name in the same folder and renamed, so a reader never
sees half a directory. It holds the weights as safetensors, config, tokenizer, and
``trainer_state.json``. After a failed write, a CheckpointError, the former directory stays.
"""

from __future__ import annotations

import json
import re
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from atroposlib.errors import CheckpointError, ConfigError
from atroposlib.utils.io import sync_path
from atroposlib.utils.models.vision import language_model_class, picture_reader
from example_trainer.distributed.collectives import run_on_rank0
from example_trainer.model import adapter, state_dict
from example_trainer.model.policy import PackedModel
from example_trainer.model.scoring import inner_model

STATE_FILE = "trainer_state.json"
DRAFT, REPLACED = ".draft", ".replaced"  # ends of the hidden names
NUMBER = re.compile(r"(?:_|-v)(\d+)$")  # number of a directory in a series


@dataclass(frozen=True)
class TrainerState:
    """Progress of the weights in a directory: the batches they have been trained on."""

    run_id: str
    step: int
    version: int
    batch_no: int | None  # the last batch
    # Life of the trainer that wrote it, and the first versions of the last lives
    # (``atroposlib.wire.lineage``); 0 and empty where the rollout API counts none.
    incarnation: int = 0
    starts: Sequence[int] = field(default=(), compare=False)  # JSON has lists

    def has_trained(self, run_id: str, batch_no: int) -> bool:
        """Whether the batch is in these weights; batches are numbered in training order."""
        return (
            run_id == self.run_id and self.batch_no is not None and batch_no <= self.batch_no
        )


def read_state(model_name: str) -> TrainerState | None:
    """State file of a model directory, None without it; ConfigError if it is unreadable."""
    path = Path(model_name) / STATE_FILE
    if not path.is_file():
        return None
    try:
        return TrainerState(**json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path} is not a trainer state ({error}); remove it") from error


def write_state(directory: Path, state: TrainerState) -> None:
    (directory / STATE_FILE).write_text(json.dumps(asdict(state)))


def save_model(
    model: PackedModel,
    directory: Path,
    state: TrainerState,
    *,
    untie_head: bool = False,
    durable: bool = True,
) -> Path:
    """Write the model whole into ``directory``, in the compute dtype. Collective.

    Args:
        untie_head: write a tied output head as a separate tensor, for engines that do
            not refresh a tied head on reload.
        durable: flush to disk before returning. Otherwise the directory survives a crash of
            this process but not of the machine.
    """
    weights = state_dict.full_weights(model, model.compute_dtype)
    run_on_rank0(
        model.world,
        lambda: write_model(
            directory,
            inner_model(model.model),
            model.pictures or model.tokenizer,
            weights,
            state,
            dtype=model.compute_dtype,
            untie_head=untie_head,
            durable=durable,
        ),
    )
    return directory


def write_model(
    directory: Path,
    model: Any,
    tokenizer: Any,
    weights: Mapping[str, Tensor],
    state: TrainerState,
    *,
    dtype: torch.dtype,
    untie_head: bool = False,
    durable: bool = True,
) -> None:
    """Write these weights as a directory that transformers and inference engines load.

    Args:
        model: gives shapes, names and config; its own weights are not written.
        tokenizer: or the processor of a model that reads pictures, which has one.
        weights: under the names of ``model``, whole, in ``dtype``.
    """
    with whole_directory(directory, durable=durable) as draft:
        as_written = _as_written(model, weights, untie_head)
        model.save_pretrained(draft, state_dict=as_written)
        tokenizer.save_pretrained(draft)
        _patch_config(draft / "config.json", dtype, untie_head)
        write_state(draft, state)


def save_adapter(
    model: PackedModel, directory: Path, state: TrainerState, *, durable: bool = True
) -> Path:
    """Write only the adapter into ``directory``, in the format of peft. Collective."""
    tensors = state_dict.adapter_weights(model)

    def write() -> None:
        with whole_directory(directory, durable=durable) as draft:
            adapter.write_adapter(model, tensors, draft)
            write_state(draft, state)

    run_on_rank0(model.world, write)
    return directory


def untied_copy(model_name: str, directory: Path) -> Path:
    """A copy of a model whose output head is no longer tied to its embedding.

    Start vLLM from this copy when the trainer publishes untied weights to it.
    """
    from transformers import AutoConfig, AutoTokenizer

    auto = language_model_class(AutoConfig.from_pretrained(model_name))
    model: Any = auto.from_pretrained(model_name)
    tokenizer = picture_reader(model_name, model) or AutoTokenizer.from_pretrained(model_name)
    start = TrainerState("", 0, 0, None)
    weights = model.state_dict()
    write_model(
        directory, model, tokenizer, weights, start, dtype=model.dtype, untie_head=True
    )
    return directory


def is_tied(policy: PackedModel) -> bool:
    """Whether output head and embedding are the same tensor."""
    return bool(state_dict.tied_heads(inner_model(policy.model))[1])


def _as_written(
    model: Any, weights: Mapping[str, Tensor], untie_head: bool
) -> dict[str, Tensor]:
    written = dict(weights)
    embedding, heads = state_dict.tied_heads(model)
    for head in heads:  # safetensors would write the alias as a second tensor
        written.pop(head, None)
        if untie_head:
            written[head] = written[embedding].clone()
    return written


def _patch_config(path: Path, dtype: torch.dtype, untie_head: bool) -> None:
    config: dict[str, Any] = json.loads(path.read_text())
    config["dtype"] = str(dtype).removeprefix("torch.")
    if untie_head:
        config["tie_word_embeddings"] = False
    path.write_text(json.dumps(config, indent=2))


# --- directories --------------------------------------------------------------------


@contextmanager
def whole_directory(final: Path, *, durable: bool) -> Iterator[Path]:
    """A draft directory, renamed to ``final`` when the block ends without an error."""
    draft, replaced = _sibling(final, DRAFT), _sibling(final, REPLACED)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        _mend(final)
        draft.mkdir()
        yield draft
        for path in draft.rglob("*.safetensors"):  # safetensors makes private files
            path.chmod(stat.S_IMODE(draft.stat().st_mode) & 0o666)
        if durable:
            for path in (*sorted(draft.rglob("*")), draft):
                sync_path(path)
        if final.exists():
            final.rename(replaced)
        draft.rename(final)
        if durable:
            sync_path(final.parent)
        shutil.rmtree(replaced, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise CheckpointError(
            f"{final} could not be written: {error}. What was there before is untouched;"
            " free some space or choose another place, and start again"
        ) from error


def discard(directory: Path) -> None:
    """Delete a directory that no reader meets half deleted; what fails is left to :func:`tidy`."""
    draft = _sibling(directory, DRAFT)
    with suppress(OSError):
        directory.rename(draft)
        shutil.rmtree(draft)


def tidy(directory: Path) -> None:
    """Remove leftovers of killed writers in ``directory``."""
    for suffix in (DRAFT, REPLACED):
        for leftover in directory.glob(f".*{suffix}"):
            _mend(leftover.with_name(leftover.name[1:].removesuffix(suffix)))


def _mend(final: Path) -> None:
    """Undo a writer that was killed, also between its two renames."""
    draft, replaced = _sibling(final, DRAFT), _sibling(final, REPLACED)
    if replaced.exists() and not final.exists():
        replaced.rename(final)
    for leftover in (draft, replaced):
        shutil.rmtree(leftover, ignore_errors=True)


def _sibling(final: Path, suffix: str) -> Path:
    return final.with_name(f".{final.name}{suffix}")


def numbered_directories(directory: Path, pattern: str) -> list[Path]:
    """Directories that match, for example ``step_*``, by the number at their end."""
    directories = [path for path in directory.glob(pattern) if NUMBER.search(path.name)]
    return sorted(directories, key=lambda path: int(NUMBER.split(path.name)[1]))
