"""State machine of the run: functions from run and event to the next run. Pure.

    EMPTY --/register--> REGISTERED --first claim--> STARTED
      ^                       |  ^                     |  ^
      |                       '--' /register again:    '--' new sizes and a new generation;
      '----- /reset_data -----'    queue and environments stay

The run is a small document, saved whole at each transition, so a restarted API reads
either the state before a call or the state after it. Revision and trainer generation are
not part of it: the store counts both (``RunDocument``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection
from operator import attrgetter

import msgspec

from atroposlib.api.common.records import RunDocument
from atroposlib.api.common.run_record import EnvEntry, RunRecord, RunState, TrainerRegistration
from atroposlib.errors import (
    CannotRewind,
    ConfigError,
    InvalidGroup,
    RunTaken,
    StaleGeneration,
    UnknownEnv,
)
from atroposlib.wire import RegisterEnv, Registration
from atroposlib.wire.lineage import MAX_LIVES

# a trainer without a heartbeat for this time (3 are missed) counts as dead
TRAINER_SILENT_S = 6.0
ENV_TIMEOUT_S = 300.0  # an env without a request for this time has no share
# An env with a minimum would block every batch meanwhile; clients with a join_id poll constantly.
MINIMUM_TIMEOUT_S = 60.0
MAX_KEY_CHARACTERS = 256
ANY_TOKENS = 2**16  # a group with fewer tokens is accepted at any registered length
MAX_ENVS = 10_000  # connected at once
MAX_REGISTERED = 16  # ids of registrations that are remembered
KEPT_ENVS = 256  # beyond, all but the last half are forgotten once they left or are silent


def run_of(document: RunDocument) -> RunRecord:
    """The run of its document. Earlier versions kept its environments in the body."""
    run = msgspec.json.decode(document.body or b"{}", type=RunRecord)
    envs = tuple(msgspec.json.decode(env, type=EnvEntry) for env in document.envs)
    return msgspec.structs.replace(run, envs=run.envs + envs)


# --- events -------------------------------------------------------------------------


def require_free(
    run: RunRecord, body: Registration, silent_s: float | None, now: float
) -> None:
    """Refuse a trainer that would fence a live trainer by mistake.

    Trainers without a ``life`` (of the original, or of older versions) are not refused, and
    neither are their successors.

    Args:
        silent_s: seconds since the last heartbeat of the registered trainer; None: it ended.

    Raises:
        RunTaken: names the registered trainer.
    """
    holder = run.trainer
    if holder is None or not holder.life or body.life in ("", holder.life) or body.take_over:
        return
    if silent_s is not None and silent_s < TRAINER_SILENT_S:
        raise RunTaken(
            f"the trainer {holder.run_name or 'without a name'} (host {holder.host}, pid"
            f" {holder.pid}) holds this run since {now - holder.since:.0f} s, its last"
            f" heartbeat came {silent_s:.0f} s ago"
        )


def require_rewindable(last_batch: int, gone: int, holds: int) -> None:
    """Refuse a checkpoint that the run cannot be rewound to.

    Raises:
        CannotRewind: batches after ``holds`` are freed, or it is of another run.
    """
    if holds > last_batch:
        raise CannotRewind(
            f"batch {holds} was never formed here, the last one is {last_batch}: the data of"
            " the rollout API is older than the checkpoint"
        )
    if gone:
        raise CannotRewind(
            f"{gone} batches after batch {holds} were trained into other weights and freed:"
            " they cannot be trained into these. Start from the checkpoint that holds them"
            " (save_path of the trainer that ran before)"
        )


def is_repeated(run: RunRecord, body: Registration) -> bool:
    """Whether ``body`` is the registration in force once more, e.g. a late copy.

    Raises:
        StaleGeneration: it is an earlier registration, and another trainer has registered since.
    """
    if not body.register_id or body.register_id not in run.registered:
        return False
    if body.register_id != run.registered[-1]:
        raise StaleGeneration("another trainer has registered after this one")
    return True


def starts_over(run: RunRecord, body: Registration, trained: int) -> bool:
    """Whether a trainer registers to train from the beginning, after ``trained`` sequences."""
    same_life = run.trainer is not None and body.life == run.trainer.life != ""
    return body.starting_step == 0 and trained > 0 and not same_life


def register(
    run: RunRecord, body: Registration, fresh_id: str, trained: int, now: float = 0.0
) -> RunRecord:
    """Register a trainer: it opens the run, or takes it over after a restart.

    The policy version starts at ``starting_step``: after step k the servers hold version
    k, and a trainer that restarts from a checkpoint restarts with its weights.

    Args:
        trained: sequences of all batches acked so far.
    """
    repeated = run.trainer is not None and body.life == run.trainer.life != ""
    # Trainers without a life are not counted, unless they follow a trainer with a life.
    starts: tuple[int, ...] = ()
    if body.life or run.incarnation:
        starts = (*run.starts[: -1 if repeated else None], body.starting_step)[-MAX_LIVES:]
    fields = body.model_dump(exclude={"holds", "take_over", "register_id"})
    return msgspec.structs.replace(
        run,
        state=RunState.REGISTERED if run.state is RunState.EMPTY else run.state,
        run_id=run.run_id or fresh_id,
        policy_version=body.starting_step,
        ended_step=None,
        trainer=TrainerRegistration(**fields, since=now),
        incarnation=run.incarnation + (bool(starts) and not repeated),
        starts=starts,
        registered=(*run.registered, body.register_id)[-MAX_REGISTERED:],
        base_version=body.starting_step,
        admission_base=trained,
    )


def rebase(run: RunRecord, trained: int) -> RunRecord:
    """Restart the staleness budget after a rewind; ``trained`` sequences count."""
    return msgspec.structs.replace(
        run, base_version=run.policy_version, admission_base=trained
    )


def start(run: RunRecord, claimed: int | None = None) -> RunRecord:
    """Start the run at the first batch that the trainer asks for.

    Args:
        claimed: the generation, if it asks by POST /batches/claim.
    """
    run.registration
    generation = run.claimed if claimed is None else claimed
    return msgspec.structs.replace(run, state=RunState.STARTED, claimed=generation)


def require_polled(run: RunRecord, generation: int) -> None:
    """Refuse GET /batch, which names no generation, in a run whose trainer claims.

    Trainers of the original neither set ``commits`` nor claim, so the call comes from a
    replaced trainer, or from a person.

    Raises:
        StaleGeneration: the trainer of ``generation`` claims its batches.
    """
    if run.registration.commits or run.claimed == generation:
        raise StaleGeneration(
            "the trainer of this run claims its batches (POST /batches/claim): GET /batch "
            "serves no other one until that registers"
        )


class Roster:
    """Environments by name, so that the cost of a join hardly depends on their number."""

    def __init__(self) -> None:
        self._envs: tuple[EnvEntry, ...] = ()
        self._joined: dict[tuple[str, str], EnvEntry] = {}
        self._last: dict[str, int] = {}  # number of the last namesake

    def read(self, envs: tuple[EnvEntry, ...]) -> None:
        """Take over the environments of a run, mostly the known environments and some more."""
        known = len(self._envs)
        if envs[:known] != self._envs:
            self._joined, self._last, known = {}, {}, 0
        for env in envs[known:]:
            self._joined.setdefault((env.desired_name, env.join_id), env)
            number = int(env.wandb_name.rpartition("_")[2])
            self._last[env.desired_name] = max(number, self._last.get(env.desired_name, -1))
        self._envs = envs

    def joined(self, body: RegisterEnv) -> EnvEntry | None:
        """The environment of an earlier call with this ``join_id``."""
        return self._joined.get((body.desired_name, body.join_id)) if body.join_id else None

    def next_name(self, name: str) -> str:
        return f"{name}_{self._last.get(name, -1) + 1}"


def join(
    run: RunRecord,
    body: RegisterEnv,
    live: Callable[[RunRecord], Collection[int]] | None = None,
    roster: Roster | None = None,
    now: float = 0.0,
) -> tuple[RunRecord, EnvEntry]:
    """Add an environment to a started run. Ids are never reused.

    A repeated ``join_id`` gets its environment: after a lost reply, a second environment that
    no process runs would block batches by its minimum until it counts as silent. For the same
    reason an environment leaves when a later life of its ``seat`` joins under its name.

    Args:
        live: environments to keep where silent environments are forgotten; None: all.
        roster: kept between calls, to save time.

    Raises:
        ConfigError: ``MAX_ENVS`` environments are live.
    """
    roster = roster or Roster()
    roster.read(run.envs)
    if (env := roster.joined(body)) is not None:
        return run, env
    for ghost in _earlier_lives(run, body):
        run = leave(run, ghost.env_id)
    entry = EnvEntry(
        env_id=max(run.first_env, run.envs[-1].env_id + 1 if run.envs else 0),
        wandb_name=roster.next_name(body.desired_name),
        joined=now,
        **body.model_dump(),
    )
    if live is not None and _crowded(len(run.envs)):
        run = _without_absent(run, live(run))
    if len(run.envs) >= MAX_ENVS:
        raise ConfigError(f"{MAX_ENVS} environments are connected: disconnect some")
    return msgspec.structs.replace(run, envs=(*run.envs, entry)), entry


def _earlier_lives(run: RunRecord, body: RegisterEnv) -> list[EnvEntry]:
    if not body.seat:
        return []
    place = (body.seat, body.desired_name)
    return [env for env in run.envs if env.connected and (env.seat, env.desired_name) == place]


def _crowded(envs: int) -> bool:
    """Whether to look for absent environments: not at every join, as it costs time for each."""
    return envs >= MAX_ENVS or envs >= KEPT_ENVS and envs % (KEPT_ENVS // 2) == 0


def _without_absent(run: RunRecord, live: Collection[int]) -> RunRecord:
    recent = run.envs[-KEPT_ENVS // 2].env_id
    kept = tuple(env for env in run.envs if env.env_id in live or env.env_id >= recent)
    ids = {env.env_id for env in kept}
    seen = {env: at for env, at in run.seen.items() if env in ids}
    return msgspec.structs.replace(run, envs=kept, seen=seen)


def leave(run: RunRecord, env_id: int) -> RunRecord:
    """Disconnect an environment: it keeps its id and has no share."""
    gone = msgspec.structs.replace(find_env(run, env_id), connected=False)
    return msgspec.structs.replace(
        run, envs=tuple(gone if env.env_id == env_id else env for env in run.envs)
    )


def gone(before: RunRecord, after: RunRecord) -> set[int]:
    """Ids of the environments that were connected and are not any more."""
    connected = {env.env_id for env in after.envs if env.connected}
    return {env.env_id for env in before.envs if env.connected} - connected


def announce(
    run: RunRecord, version: int, incarnation: int | None = None, ended: bool = False
) -> RunRecord:
    """Set the policy version, and the last step if it ``ended`` the run.

    An older version never overwrites a newer version, and a trainer that was replaced changes
    nothing.
    """
    run.registration
    if incarnation not in (None, run.incarnation):
        return run
    return msgspec.structs.replace(
        run,
        policy_version=max(run.policy_version, version),
        announced_by=run.incarnation or None,
        ended_step=version if ended else run.ended_step,
    )


def silent_after_s(env: EnvEntry) -> float:
    """Seconds without a request after which an environment has no share."""
    polls_with_minimum = env.join_id and env.min_batch_allocation
    return MINIMUM_TIMEOUT_S if polls_with_minimum else ENV_TIMEOUT_S


def require_run(run: RunRecord, run_id: str | None) -> None:
    """Reject a caller of another run, whose env ids have another meaning in this run."""
    if run_id is not None and run_id != run.run_id:
        raise UnknownEnv("that run is over: POST /register-env again")


def find_env(run: RunRecord, env_id: int) -> EnvEntry:
    """The environment of a request. Raises UnknownEnv if this run lacks it."""
    place = bisect_left(run.envs, env_id, key=attrgetter("env_id"))
    if place == len(run.envs) or run.envs[place].env_id != env_id:
        raise UnknownEnv(f"this run has no env {env_id}: POST /register-env again")
    return run.envs[place]


# --- where a group goes -------------------------------------------------------------


def expected_size(
    run: RunRecord, env_id: int | None, rows: int, declared: int | None
) -> int | None:
    """Sequences for which a group waits in the buffer of its env; None: it is queued at once.

    Only a group smaller than the size of its env can be completed by further groups, so only that
    group waits. ``declared`` is ``group_overrides["group_size"]``: a different size for a
    group.

    Raises:
        UnknownEnv: the env id is not of this run.
        InvalidGroup: the group is larger than a batch of this run.
    """
    if run.trainer is not None and rows > (size := run.trainer.batch_size):
        problem = f"a group of {rows} sequences never fits a batch of {size}"
        raise InvalidGroup("tokens", "", problem)
    if env_id is None:
        return None
    expected = find_env(run, env_id).group_size
    return expected if rows < expected and declared != rows else None


def require_length(run: RunRecord, rows: int, tokens: int) -> None:
    """Reject a group with more tokens than rows of the registered length have.

    Raises:
        InvalidGroup: names the limit.
    """
    longest = run.trainer.max_token_len if run.trainer else 0
    if 0 < longest and tokens > max(ANY_TOKENS, limit := rows * longest):
        problem = (
            f"{tokens} tokens, more than the {limit} of {rows} rows of max_token_len {longest}"
        )
        raise InvalidGroup("tokens", "", f"{problem}, which the trainer registered")


def require_key(key: str | None) -> None:
    """Reject an idempotency key that a store cannot hold."""
    if key is not None and len(key) > MAX_KEY_CHARACTERS:
        raise InvalidGroup("idempotency_key", "", f"at most {MAX_KEY_CHARACTERS} characters")
    if key is not None and "\0" in key:
        raise InvalidGroup("idempotency_key", "", "no NUL character")
