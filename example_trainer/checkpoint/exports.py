"""Model exports: ``save_path/step_<n>`` at intervals, ``final_model`` at the end.

With an adapter: ``adapter_step_<n>``, ``final_adapter`` and, at the end, ``tokenizer``.
They are not for resuming a run: see ``recovery``.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from example_trainer.distributed.collectives import run_on_rank0
from example_trainer.distributed.ranks import Ranks
from example_trainer.model.model_dir import (
    TrainerState,
    numbered_directories,
    read_state,
    save_adapter,
    save_model,
    whole_directory,
)
from example_trainer.model.policy import PackedModel
from example_trainer.settings.run import RunSettings
from example_trainer.state import Frequency

Save = Callable[[PackedModel, Path, TrainerState], Path]


class ModelExporter:
    """All methods are collective.

    Raises:
        CheckpointError: the disk refused the write; earlier exports are unchanged.
    """

    def __init__(self, settings: RunSettings, world: Ranks, *, adapter: bool) -> None:
        self._world = world
        self._directory = Path(settings.save_path)
        self._keep = settings.keep_saved
        self._adapter = adapter
        self._prefix = "adapter_step" if adapter else "step"
        self._save: Save = save_adapter if adapter else save_model
        self.frequency = Frequency(
            settings.save_every_epochs,
            settings.checkpoint_interval or None,
            settings.save_every_s,
            time.time(),
        )

    def maybe(self, model: PackedModel, state: TrainerState, epoch_ended: bool) -> Path | None:
        """Save after this step if it is due; call once per step."""
        if not run_on_rank0(self._world, lambda: self.frequency.due(epoch_ended, time.time())):
            return None
        directory = self._save(model, self._directory / f"{self._prefix}_{state.step}", state)
        if self._world.is_rank0 and self._keep is not None:
            self._let_go(state, self._keep)
        return directory

    def final(self, model: PackedModel, state: TrainerState) -> Path:
        """Save the final model; return its directory."""
        directory = self._directory / ("final_adapter" if self._adapter else "final_model")
        self._save(model, directory, state)
        if self._adapter:
            run_on_rank0(self._world, lambda: self._save_tokenizer(model))
        return directory

    def _save_tokenizer(self, model: PackedModel) -> None:
        with whole_directory(self._directory / "tokenizer", durable=True) as draft:
            (model.pictures or model.tokenizer).save_pretrained(draft)

    def _let_go(self, state: TrainerState, keep: int) -> None:
        """Delete the oldest exports of this run; exports of another run are kept."""
        ours = [
            path
            for path in numbered_directories(self._directory, f"{self._prefix}_*")
            if int(path.name.split("_")[-1]) <= state.step
            and (held := read_state(str(path))) is not None
            and held.run_id == state.run_id
        ]
        for path in ours[:-keep]:
            shutil.rmtree(path, ignore_errors=True)
