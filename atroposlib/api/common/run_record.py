"""Records of the run: its trainer, its environments, and what it counts."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import msgspec

from atroposlib.errors import NotRegistered
from atroposlib.wire import CertificatePolicy, StalenessPolicy, SteeredState


class EnvEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Environment of this run; the run lists them by ascending id."""

    env_id: int
    desired_name: str
    wandb_name: str
    max_token_length: int
    weight: float
    group_size: int
    min_batch_allocation: float | None = None
    connected: bool = True
    tokenizer: str | None = None
    join_id: str = ""
    seat: str = ""
    source: dict[str, str] | None = None  # package, version, digest
    joined: float = 0.0  # s, clock of the API


class EnvSteering(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Settings of an operator for all processes of an environment.

    ``draining`` and ``paused`` start no rollout. The queued groups of a paused environment wait, those
    of a draining environment are trained.
    """

    state: SteeredState = "running"
    weight: float | None = None  # None: that of its registration
    max_rollouts: int | None = None  # limit of each process; None: its own


class ProcessAccount(msgspec.Struct, frozen=True, kw_only=True):
    """The newest counters of tokens of an environment process; see ``wire.status``."""

    env: str  # wandb_name
    sequence: int
    at: float  # s, clock of the API
    ended: bool = False
    counts: tuple[tuple[int, str, int, int], ...] = ()  # version, state, tokens, samples


class RunState(str, Enum):
    """State of the run."""

    EMPTY = "EMPTY"  # no trainer has registered
    REGISTERED = "REGISTERED"  # sizes are known; environments wait
    STARTED = "STARTED"  # the trainer claimed a batch; environments may join


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
    life: str = ""
    host: str = ""
    pid: int = 0
    run_name: str = ""
    tokenizer: str | None = None
    vocab_size: int | None = None
    require_certificate: CertificatePolicy = "off"
    since: float = 0.0  # s, clock of the API


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The run without its groups. ``run_id`` is empty before the run begins."""

    state: RunState = RunState.EMPTY
    run_id: str = ""
    policy_version: int = 0
    trainer: TrainerRegistration | None = None
    envs: tuple[EnvEntry, ...] = ()
    claimed: int = 0  # the last generation whose trainer called POST /batches/claim
    # Base of the staleness budget of /admission: policy version and trained sequences at
    # the last start or rewind of the trainer.
    base_version: int = 0
    admission_base: int = 0
    # Last request of each env at any replica, in s; empty where a single process serves the run.
    seen: Mapping[int, float] = {}
    # Lives of the trainer (``wire.lineage``): their number, first versions of the last lives,
    # the life that announced ``policy_version``. ``registered``: ids of the last registrations.
    incarnation: int = 0
    starts: tuple[int, ...] = ()
    announced_by: int | None = None
    registered: tuple[str, ...] = ()
    ended_step: int | None = None  # last step, reported by the trainer in force
    steering: Mapping[str, EnvSteering] = {}  # keys: desired_name
    first_env: int = 0  # least id of the next environment: a restored run leaves ids out
    accounts: Mapping[str, ProcessAccount] = {}  # keys: instances of processes
    edits: int = 0  # saves that changed or removed environments, not only added some

    @property
    def registration(self) -> TrainerRegistration:
        """The registration in force; raises NotRegistered without a trainer."""
        if self.trainer is None:
            raise NotRegistered("no trainer has registered: POST /register first")
        return self.trainer
