"""GSM8K with a teacher: every sent token carries the teacher's likeliest tokens beside it.

    python environments/gsm8k_server_teacher_distill.py serve --env.dataset_path DIR \\
        --teacher.base_url http://localhost:9003/v1 --teacher.model_name TEACHER

The teacher has to know the same tokens as the model that is trained.
"""

from pydantic import Field

from atroposlib.envs.base import APIServerConfig
from atroposlib.envs.teacher_distillation_env import (
    TeacherDistillationConfig,
    TeacherDistillationEnv,
)
from environments.gsm8k_server import GSM8kConfig, GSM8kEnv


class GSM8kTeacherDistillConfig(GSM8kConfig, TeacherDistillationConfig):
    """Settings of the word problems and of the teacher."""

    teacher_enabled: bool = Field(default=True, description="ask a teacher for logprobs")
    teacher_top_k: int = Field(
        default=4, ge=-1, description="teacher tokens per position; -1: do not ask"
    )


class GSM8kTeacherDistillEnv(GSM8kEnv, TeacherDistillationEnv):
    """GSM8K whose groups go out with what a teacher thinks of each token."""

    name = "gsm8k_teacher_distill"
    env_config_cls = GSM8kTeacherDistillConfig

    @classmethod
    def teacher_config_init(cls):
        config = cls.env_config_cls()
        return APIServerConfig(
            model_name=config.tokenizer_name,
            base_url="http://localhost:9003/v1",
            server_type="vllm",
        )


if __name__ == "__main__":
    GSM8kTeacherDistillEnv.cli()
