"""Model exports: ``save_path/step_<n>`` at intervals, ``final_model`` at the end.

With an adapter: ``adapter_step_<n>``, ``final_adapter`` and, at the end, ``tokenizer``.
They are not for resuming a run: see ``recovery``.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from example_trainer.distributed.collectives import run_on_rank0
from example_trainer.distributed.ranks import Ranks
from example_trainer.model.model_dir import (
    TrainerState,
    numbered,
    read_state,
    save_adapter,
    save_model,
    whole_directory,
)
from example_trainer.model.policy import Policy
from example_trainer.settings.run import RunSettings
from example_trainer.state import Frequency


class ModelExporter:
    """All methods are collective."""

    def __init__(self, settings: RunSettings, world: Ranks, *, adapter: bool) -> None:
        self._world = world
        self._directory = Path(settings.save_path)
        self._keep = settings.keep_saved
        self._adapter = adapter
        self._prefix = "adapter_step" if adapter else "step"
        self.frequency = Frequency(
            settings.save_every_epochs,
            settings.checkpoint_interval or None,
            settings.save_every_s,
            time.time(),
        )

    def maybe(self, policy: Policy, state: TrainerState, epoch_ended: bool) -> Path | None:
        """Save after this step if it is due; call once per step.

        Raises:
            CheckpointError: the disk did not take it; earlier ones are whole.
        """
        if not run_on_rank0(self._world, lambda: self.frequency.due(epoch_ended, time.time())):
            return None
        directory = self._directory / f"{self._prefix}_{state.step}"
        self._save(policy, directory, state)
        if self._world.is_rank0 and self._keep is not None:
            self._let_go(state, self._keep)
        return directory

    def final(self, policy: Policy, state: TrainerState) -> Path:
        """Save the final model.

        Raises:
            CheckpointError: the disk did not take it; earlier ones are whole.
        """
        directory = self._directory / ("final_adapter" if self._adapter else "final_model")
        self._save(policy, directory, state)
        if self._adapter:
            run_on_rank0(self._world, lambda: self._save_tokenizer(policy))
        return directory

    def _save(self, policy: Policy, directory: Path, state: TrainerState) -> None:
        if self._adapter:
            save_adapter(policy, directory, state)
        else:
            save_model(policy, directory, state)

    def _save_tokenizer(self, policy: Policy) -> None:
        with whole_directory(self._directory / "tokenizer", durable=True) as draft:
            policy.tokenizer.save_pretrained(draft)

    def _let_go(self, state: TrainerState, keep: int) -> None:
        """Delete the oldest exports of this run; those of other runs are kept."""
        ours = [
            path
            for path in numbered(self._directory, f"{self._prefix}_*")
            if int(path.name.split("_")[-1]) <= state.step
            and (held := read_state(str(path))) is not None
            and held.run_id == state.run_id
        ]
        for path in ours[:-keep]:
            shutil.rmtree(path, ignore_errors=True)
