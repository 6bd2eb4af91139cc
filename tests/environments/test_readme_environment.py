"""The environment in the README is a real one."""

from __future__ import annotations

import re
from pathlib import Path

from atroposlib.envs.base import APIServerConfig, BaseEnvConfig
from atroposlib.testing.fake_inference import FakeInference
from atroposlib.testing.tiny import char_tokenizer

ROOT = Path(__file__).resolve().parents[2]


async def test_the_environment_of_the_readme_runs_as_it_stands_there(tmp_path):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"^```python\n(.*?)^```", readme, flags=re.DOTALL | re.MULTILINE)
    names: dict[str, object] = {"__name__": "sums"}
    exec(compile(source, "README.md", "exec"), names)
    groups = tmp_path / "groups.jsonl"
    with FakeInference(reply=lambda prompt, i: "7" if i == 0 else "no idea").running() as url:
        config = BaseEnvConfig(
            total_steps=2, use_wandb=False, seed=0, data_path_to_save_groups=str(groups),
            ensure_scores_are_not_same=False, group_size=4,
        )  # fmt: skip
        server = APIServerConfig(base_url=f"{url}/v1", server_type="vllm", model_name="fake")
        env = names["SumsEnv"](config, [server])
        env.tokenizer = char_tokenizer()
        assert await env.process_manager() == 2
    assert len(groups.read_text().splitlines()) == 2
