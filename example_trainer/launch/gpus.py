"""The GPUs of a machine, shared out between the processes of a local run.

    servers the first GPUs, teachers the next, then the trainer; with too few they share some

Values in the plan are kept: ``first_gpu`` and ``memory_share`` of servers and teachers,
``trainer.gpus``, and CUDA_VISIBLE_DEVICES in ``inference.env`` or ``trainer.env``. A job of a
cluster sees only its own GPUs, and shares nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path

from atroposlib.errors import ConfigError
from example_trainer.launch.plan import Plan
from example_trainer.launch.roles import needs_evaluation_server
from example_trainer.launch.servers import choose_engine

VARIABLE = "CUDA_VISIBLE_DEVICES"
DEVICE_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # CUDA, ROCm, CUDA under Windows
MIG = "MIG-"  # names of instances of a GPU in parts
# Of the memory of a GPU that a server shares with the trainer; an engine alone takes 0.9.
SHARED = 0.4
ALONE = 0.9


@dataclass(frozen=True)
class GpuShares:
    """GPUs of each process as CUDA_VISIBLE_DEVICES; None: the same as the launcher's."""

    servers: tuple[str | None, ...]
    trainer: str | None = None
    memory_share: float | None = None  # share of each GPU of a server; None: engine's default
    lines: tuple[str, ...] = ()  # printed at the beginning of the run
    # Of each teacher by name: its GPUs, and its share of each.
    teachers: Mapping[str, tuple[str | None, float | None]] = field(default_factory=dict)


def may_have_gpus() -> bool:
    """Whether this machine has the device file of a driver, or is none of Linux."""
    return sys.platform != "linux" or any(Path(file).exists() for file in DEVICE_FILES)


def visible_gpus() -> tuple[str, ...]:
    """Names of the GPUs that child processes see; empty without CUDA.

    Does not initialise CUDA, which would take memory of the first GPU.
    """
    if find_spec("torch") is None or not may_have_gpus():
        return ()
    import torch  # takes seconds

    count = torch.cuda.device_count()
    named = os.environ.get(VARIABLE)
    names = _names_of(named) if named else [str(gpu) for gpu in range(count)]
    # CUDA shows a process the first of several MIG instances, and each child may get another.
    return tuple(names if count and names[0].startswith(MIG) else names[:count])


def shared_out(plan: Plan, visible: Sequence[str], trainer_on_cpu: bool = False) -> GpuShares:
    """Decide which process uses which of the ``visible`` GPUs. Pure.

    Raises:
        ConfigError: there are fewer GPUs than the servers or the ranks need.
    """
    wanted, count = plan.inference, servers_of(plan)
    if any(gpu.startswith(MIG) for gpu in visible):
        _require_single_gpus(plan)
    unshared = {name: (None, own.memory_share) for name, own in plan.teachers.items()}
    as_named = GpuShares(
        (None,) * count, plan.trainer.gpus, wanted.memory_share, teachers=unshared
    )
    if not visible:
        return as_named
    of_servers = _gpus_of_servers(plan, visible)
    of_teachers = _gpus_of_teachers(plan, visible, of_servers)
    taken = [*of_servers, *(gpu for own in of_teachers.values() for gpu in own)]
    of_trainer = [] if trainer_on_cpu else _gpus_of_trainer(plan, visible, taken)
    size = wanted.tensor_parallel
    servers: tuple[str | None, ...] = as_named.servers
    if VARIABLE not in wanted.env:
        parts = (of_servers[i * size : (i + 1) * size] for i in range(count))
        servers = tuple(",".join(part) for part in parts)
    trainer = ",".join(of_trainer) or (None if trainer_on_cpu else plan.trainer.gpus or None)
    both = sorted(set(of_servers) & set(of_trainer))
    share = wanted.memory_share or share_of(of_servers, taken, of_trainer)
    lines = [
        f"GPUs: inference {', '.join(dict.fromkeys(of_servers))}; trainer {trainer or 'none'}"
    ]
    if both and share is not None and wanted.memory_share is None:
        lines.append(_about_shares(plan, both, share))
    teachers = {}
    for name, own in of_teachers.items():
        section = plan.teachers[name]
        part = section.memory_share or share_of(own, taken, of_trainer)
        shown = None if VARIABLE in section.env else ",".join(own)
        teachers[name] = (shown, part)
        of_memory = "" if part is None else f", {part:.0%} of the memory"
        lines.append(f"GPUs: teacher {name} {', '.join(own)}{of_memory}")
    return GpuShares(servers, trainer, share, tuple(lines), teachers)


def share_of(
    own: Sequence[str], of_servers: Sequence[str], of_trainer: Sequence[str]
) -> float | None:
    """The share of a server in the memory of its GPUs; None: no other process uses these.

    Args:
        of_servers: GPUs of all servers and teachers, a GPU as often as it is used.
    """
    users = max((of_servers.count(gpu) for gpu in own), default=1)
    if set(own) & set(of_trainer):
        return min(SHARED, 0.5 / users)
    return None if users == 1 else ALONE / users


def servers_of(plan: Plan) -> int:
    """Number of servers of a local run, with the server of evaluations."""
    return plan.inference.count + needs_evaluation_server(plan)


def _gpus_of_servers(plan: Plan, visible: Sequence[str]) -> list[str]:
    """GPUs of all servers in turn: as named, else the first that the trainer leaves."""
    wanted = plan.inference
    needed = servers_of(plan) * wanted.tensor_parallel
    if VARIABLE in wanted.env:
        names, size = _names_of(wanted.env[VARIABLE]), wanted.tensor_parallel
        _require_enough(names, size, f"inference.env.{VARIABLE}", "inference.tensor_parallel")
        # All servers have the same variable, so that each takes its first GPUs.
        return names[:size] * servers_of(plan) + names[size:]
    part = _part_of(visible, wanted.first_gpu, needed, _named_for_trainer(plan) or ())
    if len(part) < needed:
        raise ConfigError(
            f"inference.count={servers_of(plan)} servers with inference.tensor_parallel="
            f"{wanted.tensor_parallel} need {needed} GPUs from inference.first_gpu="
            f"{wanted.first_gpu or 0} on, and {len(visible)} are visible"
        )
    return part


def _part_of(
    visible: Sequence[str], first: int | None, needed: int, taken: Collection[str]
) -> list[str]:
    """GPUs from ``first`` on; None: the first that are not taken, or of all if these are too few."""
    if first is not None:
        return list(visible[first : first + needed])
    free = [gpu for gpu in visible if gpu not in taken]
    return (free if len(free) >= needed else list(visible))[:needed]


def _gpus_of_teachers(
    plan: Plan, visible: Sequence[str], of_servers: Sequence[str]
) -> dict[str, list[str]]:
    """GPUs of each teacher: as named, else the next free GPUs, else the first."""
    taken, parts = {*of_servers, *(_named_for_trainer(plan) or ())}, {}
    for name, section in plan.teachers.items():
        needed = section.tensor_parallel
        if VARIABLE in section.env:
            part = _names_of(section.env[VARIABLE])
        else:
            part = _part_of(visible, section.first_gpu, needed, taken)
        if len(part) < needed:
            raise ConfigError(
                f"teachers.{name}.tensor_parallel={needed} needs {needed} GPUs from"
                f" first_gpu={section.first_gpu or 0} on, and {len(visible)} are visible"
            )
        parts[name] = part
        taken |= {*part}
    return parts


def _gpus_of_trainer(plan: Plan, visible: Sequence[str], taken: Sequence[str]) -> list[str]:
    """GPUs of the ranks: as named, else the next after the servers', else the last GPUs."""
    needed, named = plan.trainer.nproc, _named_for_trainer(plan)
    if named is not None:
        in_env = VARIABLE in plan.trainer.env
        setting = f"trainer.env.{VARIABLE}" if in_env else "trainer.gpus"
        _require_enough(named, needed, setting, "trainer.nproc")
        return named
    if len(visible) < needed:
        raise ConfigError(
            f"trainer.nproc={needed} ranks need as many GPUs, and {len(visible)} are visible:"
            " lower it, or set trainer.settings.device=cpu"
        )
    free = [gpu for gpu in visible if gpu not in taken]
    return free[:needed] if len(free) >= needed else list(visible[-needed:])


def _named_for_trainer(plan: Plan) -> list[str] | None:
    """GPUs that the plan names for the trainer, empty if it names none of them; None: no names."""
    named = plan.trainer.env.get(VARIABLE, plan.trainer.gpus or None)
    return None if named is None else _names_of(named)


def _names_of(gpus: str) -> list[str]:
    """The names before the first that is negative, at which CUDA stops reading."""
    names = [gpu.strip() for gpu in gpus.split(",") if gpu.strip()]
    return list(takewhile(lambda name: not name.startswith("-"), names))


def _require_enough(names: Sequence[str], needed: int, setting: str, wants: str) -> None:
    """Refuse a list with a name twice, which CUDA takes for none, or of too few GPUs."""
    if len({*names}) < len(names) or 0 < len(names) < needed:
        raise ConfigError(
            f"{setting} names {','.join(names)}, and {wants}={needed} needs {needed} different GPUs"
        )


def _require_single_gpus(plan: Plan) -> None:
    sizes = {"trainer.nproc": plan.trainer.nproc}
    sizes["inference.tensor_parallel"] = plan.inference.tensor_parallel
    for name, section in plan.teachers.items():
        sizes[f"teachers.{name}.tensor_parallel"] = section.tensor_parallel
    for setting, size in sizes.items():
        if size > 1:
            raise ConfigError(
                f"{setting}={size}: CUDA gives a process one MIG instance; set 1"
            )


def _about_shares(plan: Plan, both: Sequence[str], share: float) -> str:
    where = f"server and trainer share GPU {', '.join(both)}"
    if choose_engine(plan.inference.engine) == "local":
        return f"{where}: another one for the trainer is faster (trainer.gpus)"
    return (
        f"{where}: the server takes {share:.0%} of its memory (inference.memory_share), the"
        " trainer what is left (trainer.settings.max_tokens_per_microbatch)"
    )
