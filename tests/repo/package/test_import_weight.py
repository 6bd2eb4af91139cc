"""Importing a public module loads nothing heavy: commands and workers start at once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HEAVY = (
    "datasets fastapi gradio httpx openai pyarrow rich safetensors scipy sympy torch "
    "transformers uvicorn wandb zstandard"
).split()
LIGHT = (
    "atroposlib.envs atroposlib.envs.base atroposlib.envs.settings.config atroposlib.envs.constants "
    "atroposlib.envs.eval atroposlib.envs.function_env atroposlib.envs.reward_fns "
    "atroposlib.envs.teacher_distillation_env "
    "atroposlib.generation.sessions.managed "
    "atroposlib.generation.engines.openai "
    "atroposlib.generation.sessions.remote "
    "atroposlib.generation.engines.api_server "
    "atroposlib.generation.engines.harness "
    "atroposlib.generation.routing.manager "
    "atroposlib.generation.engines.sglang "
    "atroposlib.generation.chat.tool_call_translator "
    "atroposlib.generation.engines.trl "
    "atroposlib.generation.engines.vllm "
    "atroposlib.client atroposlib.errors atroposlib.frontend.jsonl2html "
    "atroposlib.type_definitions atroposlib.utils.advantages "
    "atroposlib.utils.best_of_n_selection atroposlib.utils.cli atroposlib.utils.display "
    "atroposlib.utils.force_diverse_samples atroposlib.utils.io "
    "atroposlib.utils.message_history_utils atroposlib.utils.metrics "
    "atroposlib.utils.tokenize_for_trainer "
    "atroposlib.utils.tokenizers.qwen_fixed_tokenizer atroposlib.utils.tool_call_parser "
    "atroposlib.wire"
).split()

# One interpreter per module would take minutes: the modules that an import adds are attributed to it.
PROBE = """
import importlib, sys
heavy = set(sys.argv[1].split())
for name in sys.argv[2:]:
    before = heavy & set(sys.modules)
    importlib.import_module(name)
    print(name, *sorted((heavy & set(sys.modules)) - before))
"""


def loaded_by(*modules: str) -> dict[str, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, " ".join(HEAVY), *modules],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    return {name: heavy for name, *heavy in lines}


def test_public_modules_load_no_heavy_dependency():
    found = loaded_by(*LIGHT)
    assert {name: heavy for name, heavy in found.items() if heavy} == {}
    assert len(found) == len(LIGHT)


def test_the_base_class_loads_no_heavy_dependency():
    assert loaded_by("atroposlib.envs.base") == {"atroposlib.envs.base": []}


@pytest.mark.parametrize("module", ["httpx", "sympy"])
def test_the_probe_detects_heavy_dependencies(module):
    assert module in loaded_by(module)[module]
