"""The run as a state machine. Pure: a run and an event in, the next run out.

    EMPTY --/register--> REGISTERED --first claim--> STARTED
      ^                       |  ^                     |  ^
      |                       '--' /register again:    '--' new sizes and a new generation;
      '----- /reset_data -----'    queue and environments stay

The whole run is one small document, saved whole at each transition, so a restart of the
API finds either the state before a call or the state after it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum

import msgspec

from atroposlib.api.batching import oldest_first
from atroposlib.api.records import EnvEntry
from atroposlib.errors import ConfigError, InvalidGroup, NotRegistered, UnknownEnv
from atroposlib.wire import RegisterEnv, Registration, ScoredData

SILENT_AFTER_S = 300.0  # an env that says nothing for so long no longer holds a share
MOST_KEY_CHARACTERS = 256


class RunState(str, Enum):
    """Where the run is."""

    EMPTY = "EMPTY"  # no trainer has registered
    REGISTERED = "REGISTERED"  # sizes are known; environments still wait
    STARTED = "STARTED"  # the trainer asked for a batch; environments may join


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """The registration in force; see :class:`atroposlib.wire.Registration`."""

    wandb_group: str
    wandb_project: str
    batch_size: int
    max_token_len: int
    checkpoint_dir: str
    save_checkpoint_interval: int
    starting_step: int
    num_steps: int


class SentBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The last reply to GET /batch that went out whole; the next GET acks it."""

    no: int
    epoch: int
    generation: int


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a run that is not a group. ``run_id`` is empty before it begins."""

    state: RunState = RunState.EMPTY
    run_id: str = ""
    generation: int = 0
    policy_version: int = 0
    trainer: Registered | None = None
    envs: tuple[EnvEntry, ...] = ()
    sent: SentBatch | None = None

    @property
    def registration(self) -> Registered:
        """The registration in force.

        Raises:
            NotRegistered: there is none.
        """
        if self.trainer is None:
            raise NotRegistered("no trainer has registered: POST /register first")
        return self.trainer

    @property
    def batch_size(self) -> int | None:
        return self.trainer.batch_size if self.trainer else None


# --- events -------------------------------------------------------------------------


def register(run: Run, body: Registration, generation: int, fresh_id: str) -> Run:
    """A trainer opens the run, or a restarted one takes it over.

    The policy version starts at ``starting_step``: after step k the servers hold version
    k, and a trainer that went back to a checkpoint went back with its weights.

    Raises:
        ConfigError: a size makes no sense.
    """
    _within("batch_size", body.batch_size, 1)
    _within("starting_step", body.starting_step, 0)
    for name in ("max_token_len", "save_checkpoint_interval", "num_steps"):
        _within(name, getattr(body, name), -_LARGEST)
    for name in ("wandb_group", "wandb_project", "checkpoint_dir"):
        _short(name, getattr(body, name))
    return msgspec.structs.replace(
        run,
        state=RunState.REGISTERED if run.state is RunState.EMPTY else run.state,
        run_id=run.run_id or fresh_id,
        generation=generation,
        policy_version=body.starting_step,
        trainer=Registered(**body.model_dump()),
    )


def start(run: Run) -> Run:
    """The trainer asked for its first batch."""
    run.registration
    return msgspec.structs.replace(run, state=RunState.STARTED)


def join(run: Run, body: RegisterEnv) -> tuple[Run, EnvEntry]:
    """An environment joins a started run; its id is the next index.

    Raises:
        ConfigError: a number makes no sense.
    """
    _within("group_size", body.group_size, 1)
    _within("max_token_length", body.max_token_length, -1)
    _short("desired_name", body.desired_name)
    if not math.isfinite(body.weight):
        raise ConfigError("weight: not a finite number")
    share = body.min_batch_allocation
    if share is not None and not 0.0 <= share <= 1.0:
        raise ConfigError("min_batch_allocation: a share lies in 0 .. 1")
    namesakes = sum(env.desired_name == body.desired_name for env in run.envs)
    entry = EnvEntry(
        env_id=len(run.envs),
        wandb_name=f"{body.desired_name}_{namesakes}",
        **body.model_dump(),
    )
    return msgspec.structs.replace(run, envs=(*run.envs, entry)), entry


def leave(run: Run, env_id: int) -> Run:
    """An environment says goodbye: it keeps its id and holds no share any more."""
    gone = msgspec.structs.replace(find_env(run, env_id), connected=False)
    return msgspec.structs.replace(
        run, envs=tuple(gone if env.env_id == env_id else env for env in run.envs)
    )


def announce(run: Run, version: int) -> Run:
    """New weights are everywhere. An older version never overwrites a newer one."""
    run.registration
    _within("version", version, 0)
    return msgspec.structs.replace(run, policy_version=max(run.policy_version, version))


def require_run(run: Run, run_id: str | None) -> None:
    """Refuse a caller of another run, whose env ids would mean somebody else here.

    Raises:
        UnknownEnv: ``run_id`` is given and is not this run's.
    """
    if run_id is not None and run_id != run.run_id:
        raise UnknownEnv("that run is over: POST /register-env again")


def find_env(run: Run, env_id: int, run_id: str | None = None) -> EnvEntry:
    """The environment that calls.

    Raises:
        UnknownEnv: no such id in this run, or the id is of another run.
    """
    require_run(run, run_id)
    if not 0 <= env_id < len(run.envs):
        raise UnknownEnv(f"this run has no env {env_id}: POST /register-env again")
    return run.envs[env_id]


_LARGEST = 2**31 - 1
_MOST_CHARACTERS = 4096  # the run is saved whole at each transition


def _within(name: str, value: int, least: int) -> None:
    if not least <= value <= _LARGEST:
        raise ConfigError(f"{name}: lies in {least} .. {_LARGEST}")


def _short(name: str, value: str) -> None:
    if len(value) > _MOST_CHARACTERS:
        raise ConfigError(f"{name}: at most {_MOST_CHARACTERS} characters")


# --- where a group goes -------------------------------------------------------------


def is_buffered(run: Run, group: ScoredData) -> bool:
    """Whether a group waits for others of its env instead of going to the queue.

    Only a group smaller than its env's size can be completed by others, so only such a
    group waits. ``group_overrides["group_size"]`` declares another size for one group.

    Raises:
        UnknownEnv: the env id is not of this run.
        InvalidGroup: no batch of this run can ever hold the group.
    """
    rows = len(group.tokens)
    if run.batch_size is not None and rows > run.batch_size:
        problem = f"a group of {rows} sequences never fits a batch of {run.batch_size}"
        raise InvalidGroup("tokens", "", problem)
    if group.idempotency_key is not None and len(group.idempotency_key) > MOST_KEY_CHARACTERS:
        raise InvalidGroup("idempotency_key", "", f"at most {MOST_KEY_CHARACTERS} characters")
    if group.env_id is None:
        return False
    expected = find_env(run, group.env_id).group_size
    return rows < expected and (group.group_overrides or {}).get("group_size") != rows


def completed(buffer: Sequence[tuple[int, int]], group_size: int) -> list[int]:
    """The gids of a buffer of (gid, n_seq) that now add up to ``group_size``; else none."""
    chosen = oldest_first([(None, n_seq) for _, n_seq in buffer], group_size)
    return [buffer[i][0] for i in chosen or []]
