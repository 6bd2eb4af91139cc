"""Teachers by name: which environment has which, and their addresses in its settings. Pure.

teachers: {big: {model: M}}                    a server of the plan
env: {teacher: {base_url: big}}                its address, in the settings of a script
command: [run.sh, "{teachers.big}"]            its address, in a command of the author's own
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

IN_COMMAND = re.compile(r"\{teachers\.([^}]*)\}")
POLICY = "policy"  # the trained model is its own teacher
# Logprobs of a position that vLLM returns unless it is started for more.
VLLM_LOGPROBS = 20


class HasTeacher(Protocol):
    """The fields of an environment's section that name teachers."""

    command: list[str] | None
    config: dict[str, Any]


def teacher_of(environment: HasTeacher) -> Mapping[str, Any]:
    """The settings of an environment's teacher; empty without a teacher."""
    env = environment.config.get("env")
    teacher = env.get("teacher") if isinstance(env, Mapping) else None
    return teacher if isinstance(teacher, Mapping) else {}


def teachers_named(environment: HasTeacher) -> list[str]:
    """The names of teachers of the plan that an environment has; addresses are no names."""
    words = _words(teacher_of(environment).get("base_url"))
    names = [word for word in words if "://" not in word and word != POLICY]
    in_command = environment.command or ()
    return names + [name for word in in_command for name in IN_COMMAND.findall(word)]


def _words(base_url: str | Sequence[str] | None) -> list[str]:
    return [base_url] if isinstance(base_url, str) else list(base_url or ())


def with_addresses(
    env: Mapping[str, Any], addresses: Mapping[str, str], types: Mapping[str, str]
) -> dict[str, Any]:
    """Settings of an environment with the addresses of its teachers in place of their names.

    Args:
        addresses: ``http://host:port`` or ``file://`` of each teacher.
        types: the type of each teacher's server, for settings that name no type.
    """
    teacher = env.get("teacher")
    if not isinstance(teacher, Mapping) or not teacher.get("base_url"):
        return dict(env)
    words = _words(teacher["base_url"])
    filled = [_base_url(addresses[word]) if word in addresses else word for word in words]
    server_type = {"server_type": types[word] for word in words if word in addresses}
    is_single = isinstance(teacher["base_url"], str)
    at = filled[0] if is_single else filled
    return {**env, "teacher": {**server_type, **teacher, "base_url": at}}


def _base_url(address: str) -> str:
    return address if address.startswith("file:") else f"{address}/v1"


def logprob_arguments(name: str, environments: Iterable[HasTeacher]) -> tuple[str, ...]:
    """Arguments by which vLLM returns as many logprobs as the environments of a teacher request."""
    most = max(
        (
            int(teacher_of(e).get("top_k") or 0)
            for e in environments
            if name in teachers_named(e)
        ),
        default=0,
    )
    return ("--max-logprobs", str(most)) if most > VLLM_LOGPROBS else ()
