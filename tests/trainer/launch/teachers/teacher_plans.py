"""The example plan with two teachers."""

from __future__ import annotations

from pathlib import Path

from example_trainer.launch.plan import Plan
from tests.trainer.launch.launch_plans import plan

BIG, SMALL = "teachers.big.model=M", "teachers.small.model=S"
BIG_ENGINE = "teachers.big.engine=vllm"
HAS_BIG = "environments.0.config.env.teacher.base_url=big"
HAS_BOTH = "environments.0.config.env.teacher.base_url=[big, small]"


def taught_plan(*words: str, out: Path | str = "run") -> Plan:
    return plan("inference.engine=vllm", BIG, BIG_ENGINE, SMALL, HAS_BOTH, *words, out=out)
