"""The run as a state machine. Pure: a run and an event in, the next run out.

    EMPTY --/register--> REGISTERED --first claim--> STARTED
      ^                       |  ^                     |  ^
      |                       '--' /register again:    '--' new sizes and a new generation;
      '----- /reset_data -----'    queue and environments stay

The whole run is one small document, saved whole at each transition, so a restart of the
API finds either the state before a call or the state after it. Revision and trainer
generation are not part of it: the store counts them (``RunDocument``).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import msgspec

from atroposlib.api.common.records import EnvEntry
from atroposlib.errors import ConfigError, InvalidGroup, NotRegistered, UnknownEnv
from atroposlib.wire import RegisterEnv, Registration, StalenessPolicy

ENV_TIMEOUT_S = 300.0  # an env that says nothing for so long no longer holds a share
MAX_KEY_CHARACTERS = 256
MAX_ENVS = 10_000  # of one run, the gone ones included: ids are never used twice


class RunState(str, Enum):
    """Where the run is."""

    EMPTY = "EMPTY"  # no trainer has registered
    REGISTERED = "REGISTERED"  # sizes are known; environments still wait
    STARTED = "STARTED"  # the trainer asked for a batch; environments may join


class TrainerRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """The registration in force; see :class:`atroposlib.wire.Registration`."""

    wandb_group: str
    wandb_project: str
    batch_size: int
    max_token_len: int
    checkpoint_dir: str
    save_checkpoint_interval: int
    starting_step: int
    num_steps: int
    commits: bool = False
    max_staleness: int | None = None
    staleness_policy: StalenessPolicy = "keep"


class SentBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The last reply to GET /batch that went out whole; the next GET acks it."""

    no: int
    epoch: int
    generation: int


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a run that is not a group. ``run_id`` is empty before it begins."""

    state: RunState = RunState.EMPTY
    run_id: str = ""
    policy_version: int = 0
    trainer: TrainerRegistration | None = None
    envs: tuple[EnvEntry, ...] = ()
    sent: SentBatch | None = None
    # Where the staleness budget of /admission counts from: the policy version, and the
    # sequences trained on, when the trainer last began or went back to a checkpoint.
    base_version: int = 0
    admission_base: int = 0
    # When replicas last heard of an env, in s; empty where one process serves the run.
    seen: Mapping[int, float] = {}

    @property
    def registration(self) -> TrainerRegistration:
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


def register(run: RunRecord, body: Registration, fresh_id: str, trained: int) -> RunRecord:
    """A trainer opens the run, or a restarted one takes it over.

    The policy version starts at ``starting_step``: after step k the servers hold version
    k, and a trainer that went back to a checkpoint went back with its weights.

    Args:
        trained: sequences of all batches acked so far.
    """
    return msgspec.structs.replace(
        run,
        state=RunState.REGISTERED if run.state is RunState.EMPTY else run.state,
        run_id=run.run_id or fresh_id,
        policy_version=body.starting_step,
        trainer=TrainerRegistration(**body.model_dump()),
        base_version=body.starting_step,
        admission_base=trained,
    )


def rebase(run: RunRecord, trained: int) -> RunRecord:
    """The trainer went back to a checkpoint, after which ``trained`` sequences count."""
    return msgspec.structs.replace(
        run, base_version=run.policy_version, admission_base=trained
    )


def start(run: RunRecord) -> RunRecord:
    """The trainer asked for its first batch.

    Raises:
        NotRegistered: no trainer has registered.
    """
    run.registration
    return msgspec.structs.replace(run, state=RunState.STARTED)


def join(run: RunRecord, body: RegisterEnv) -> tuple[RunRecord, EnvEntry]:
    """An environment joins a started run; its id is the next index.

    Raises:
        ConfigError: there are too many.
    """
    if len(run.envs) >= MAX_ENVS:
        raise ConfigError(f"this run has had {MAX_ENVS} environments: reset it to begin anew")
    namesakes = sum(env.desired_name == body.desired_name for env in run.envs)
    entry = EnvEntry(
        env_id=len(run.envs),
        wandb_name=f"{body.desired_name}_{namesakes}",
        **body.model_dump(),
    )
    return msgspec.structs.replace(run, envs=(*run.envs, entry)), entry


def leave(run: RunRecord, env_id: int) -> RunRecord:
    """An environment says goodbye: it keeps its id and holds no share any more."""
    gone = msgspec.structs.replace(find_env(run, env_id), connected=False)
    return msgspec.structs.replace(
        run, envs=tuple(gone if env.env_id == env_id else env for env in run.envs)
    )


def announce(run: RunRecord, version: int) -> RunRecord:
    """New weights are everywhere. An older version never overwrites a newer one."""
    run.registration
    return msgspec.structs.replace(run, policy_version=max(run.policy_version, version))


def sent(run: RunRecord, got: SentBatch) -> RunRecord:
    """A reply to GET /batch went out whole; an older one never overwrites a newer one."""
    last = run.sent
    if last is not None and last.generation == got.generation:
        if (last.no, last.epoch) >= (got.no, got.epoch):
            return run
    return msgspec.structs.replace(run, sent=got)


def require_run(run: RunRecord, run_id: str | None) -> None:
    """Refuse a caller of another run, whose env ids would mean somebody else here.

    Raises:
        UnknownEnv: ``run_id`` is given and is not this run's.
    """
    if run_id is not None and run_id != run.run_id:
        raise UnknownEnv("that run is over: POST /register-env again")


def find_env(run: RunRecord, env_id: int, run_id: str | None = None) -> EnvEntry:
    """The environment that calls.

    Raises:
        UnknownEnv: no such id in this run, or the id is of another run.
    """
    require_run(run, run_id)
    if not 0 <= env_id < len(run.envs):
        raise UnknownEnv(f"this run has no env {env_id}: POST /register-env again")
    return run.envs[env_id]


# --- where a group goes -------------------------------------------------------------


def expected_size(
    run: RunRecord, env_id: int | None, rows: int, declared: int | None
) -> int | None:
    """Sequences that a group waits for in the buffer of its env; None: straight to the queue.

    Only a group smaller than its env's size can be completed by others, so only such a
    group waits. ``declared`` is ``group_overrides["group_size"]``, another size for one group.

    Raises:
        UnknownEnv: the env id is not of this run.
        InvalidGroup: no batch of this run can ever hold the group.
    """
    if run.batch_size is not None and rows > run.batch_size:
        problem = f"a group of {rows} sequences never fits a batch of {run.batch_size}"
        raise InvalidGroup("tokens", "", problem)
    if env_id is None:
        return None
    expected = find_env(run, env_id).group_size
    return expected if rows < expected and declared != rows else None


def require_key(key: str | None) -> None:
    """Refuse an idempotency key that a store cannot hold.

    Raises:
        InvalidGroup: it is too long, or holds a character that databases refuse in text.
    """
    if key is not None and len(key) > MAX_KEY_CHARACTERS:
        raise InvalidGroup("idempotency_key", "", f"at most {MAX_KEY_CHARACTERS} characters")
    if key is not None and "\0" in key:
        raise InvalidGroup("idempotency_key", "", "no NUL character")
