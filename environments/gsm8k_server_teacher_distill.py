"""GSM8K with distillation: every token is sent with the teacher's likeliest tokens.

    python environments/gsm8k_server_teacher_distill.py serve --env.dataset_path DIR \\
        --teacher.base_url http://localhost:9003/v1

The teacher and the trained model must have the same vocabulary.
"""

from pydantic import Field

from atroposlib.environments.gsm8k_server import GSM8kConfig, GSM8kEnv
from atroposlib.envs.base import APIServerConfig
from atroposlib.envs.teacher_distillation_env import (
    TeacherDistillationConfig,
    TeacherDistillationEnv,
)


class GSM8kTeacherDistillConfig(GSM8kConfig, TeacherDistillationConfig):
    """Settings of the word problems and of the teacher."""

    teacher_enabled: bool = Field(default=True, description="ask a teacher for logprobs")
    teacher_top_k: int = Field(
        default=4, ge=-1, description="teacher tokens per position; -1: do not ask"
    )


class GSM8kTeacherDistillEnv(GSM8kEnv, TeacherDistillationEnv):
    """GSM8K whose groups carry the teacher's logprobs of each token."""

    name = "gsm8k_teacher_distill"
    env_config_cls = GSM8kTeacherDistillConfig

    @classmethod
    def teacher_config_init(cls):
        return APIServerConfig(base_url="http://localhost:9003/v1", server_type="vllm")


if __name__ == "__main__":
    GSM8kTeacherDistillEnv.cli()
