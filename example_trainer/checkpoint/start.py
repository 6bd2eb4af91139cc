"""Starting point of training: a checkpoint, a published model, or the first step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from atroposlib.errors import CheckpointError, ConfigError
from example_trainer.checkpoint.snapshots import STATE, Snapshot
from example_trainer.model.model_dir import TrainerState, read_state
from example_trainer.settings.run import RunSettings

FORMAT = 2  # format that is written: shards with an index
READABLE = (1, 2)  # 1 has whole tensors


@dataclass(frozen=True)
class StartingPoint:
    """State to train from, and the run it belongs to."""

    run_id: str  # the API's run before this trainer registers; empty if there is no run
    state: TrainerState
    snapshot: Snapshot | None  # checkpoint that holds the state, None if there is none


def choose_start(
    cfg: RunSettings,
    identity: Mapping[str, Any],
    num_steps: int,
    run_id: str,
    snapshot: Snapshot | None,
) -> StartingPoint:
    """Choose between the newest checkpoint, the published model, and the first step.

    Args:
        identity: settings that determine which tensors a checkpoint holds and their meaning.
        num_steps: of the whole training.

    Raises:
        ConfigError: the checkpoint's settings differ, and it must not be left out.
        CheckpointError: its state cannot be read.
    """
    if snapshot is not None:
        held = state_in(snapshot)
        # Version k labels the weights after step k, regardless of the published versions.
        held = replace(held, version=held.step)
        differences = _differences(snapshot, identity)
        if differences and (held.run_id == run_id or cfg.recover_mode == "resume"):
            raise ConfigError(
                f"{snapshot.directory} was made with other settings: {differences}. Give the values"
                " of the checkpoint, or begin anew with another save_path or recover_mode disabled"
            )
        if held.run_id == run_id:
            return StartingPoint(run_id, held, snapshot)
        over = held.step >= num_steps
        if not differences and (not over or cfg.recover_mode == "resume"):
            return StartingPoint(run_id, replace(held, batch_no=None), snapshot)
    published = read_state(identity["model_name"])
    # Training on a file has no run, and an API has none before its first trainer.
    if published is not None and published.run_id == run_id != "":
        return StartingPoint(run_id, published, None)
    return StartingPoint(run_id, TrainerState(run_id, 0, 0, None), None)


def state_document(
    state: TrainerState, identity: Mapping[str, Any], counters: Mapping[str, Any]
) -> dict[str, Any]:
    """The document of a checkpoint that :func:`state_in` reads."""
    return {
        "format": FORMAT,
        **asdict(state),
        "settings": dict(identity),
        "counters": dict(counters),
    }


def state_in(snapshot: Snapshot) -> TrainerState:
    """The state of a checkpoint; CheckpointError if it is not readable."""
    document = snapshot.document(STATE)
    try:
        if document["format"] not in READABLE:
            raise CheckpointError(
                f"{snapshot.directory} is of format {document['format']}, not {FORMAT}: it was"
                " written by another version of this program"
            )
        return TrainerState(
            document["run_id"], document["step"], document["version"], document["batch_no"]
        )
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{snapshot.directory}/{STATE}.json: {error!r}") from error


def _differences(snapshot: Snapshot, now: Mapping[str, Any]) -> str:
    """Return the settings that differ from the checkpoint's; empty if none."""
    then = snapshot.document(STATE).get("settings", {})
    return ", ".join(
        f"{name} {then.get(name)!r} in the checkpoint, {now[name]!r} now"
        for name in now
        if then.get(name) != now[name]
    )
