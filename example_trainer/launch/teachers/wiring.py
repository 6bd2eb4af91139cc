"""Teachers by name: which environment has which, their addresses in its settings. Pure.

teachers: {big: {model: M}}                    a server of the plan
env: {teacher: {base_url: big}}                its address, in the settings of a script
command: [run.sh, "{teachers.big}"]            its address, in a command of the author's own
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from example_trainer.launch.plan import EnvironmentSection, Plan
from example_trainer.launch.servers import CHAT_TYPES, choose_engine

IN_COMMAND = re.compile(r"\{teachers\.([^}]*)\}")
POLICY = "policy"  # the trained model is its own teacher
# Logprobs of a position that vLLM returns unless it is started for more.
VLLM_LOGPROBS = 20


def teacher_of(wanted: EnvironmentSection) -> Mapping[str, Any]:
    """The settings of an environment's teacher; empty without one."""
    env = wanted.config.get("env")
    teacher = env.get("teacher") if isinstance(env, Mapping) else None
    return teacher if isinstance(teacher, Mapping) else {}


def teachers_named(wanted: EnvironmentSection) -> list[str]:
    """The names of teachers of the plan that an environment has; addresses are none."""
    urls = teacher_of(wanted).get("base_url") or []
    words = [urls] if isinstance(urls, str) else list(urls)
    names = [word for word in words if "://" not in word and word != POLICY]
    return names + [name for word in wanted.command or () for name in IN_COMMAND.findall(word)]


def with_addresses(
    plan: Plan, env: Mapping[str, Any], addresses: Mapping[str, str]
) -> dict[str, Any]:
    """Settings of an environment with the addresses of its teachers in place of their names."""
    teacher = env.get("teacher")
    if not isinstance(teacher, Mapping) or not (urls := teacher.get("base_url")):
        return dict(env)
    words = [urls] if isinstance(urls, str) else list(urls)
    filled = [_base_url(addresses[word]) if word in addresses else word for word in words]
    types = [
        CHAT_TYPES[choose_engine(plan.teachers[w].engine)] for w in words if w in addresses
    ]
    own = {"server_type": types[0]} if types else {}
    at = filled[0] if isinstance(urls, str) else filled
    return {**env, "teacher": {**own, **teacher, "base_url": at}}


def _base_url(address: str) -> str:
    return address if address.startswith("file:") else f"{address}/v1"


def logprob_arguments(plan: Plan, name: str) -> tuple[str, ...]:
    """Arguments by which vLLM returns as many logprobs as the environments of a teacher ask for."""
    section = plan.teachers[name]
    asked = [
        int(teacher_of(wanted).get("top_k") or 0)
        for wanted in plan.environments
        if name in teachers_named(wanted)
    ]
    most = max(asked, default=0)
    is_known = any(word.startswith("--max-logprobs") for word in section.args)
    if choose_engine(section.engine) != "vllm" or most <= VLLM_LOGPROBS or is_known:
        return ()
    return ("--max-logprobs", str(most))
