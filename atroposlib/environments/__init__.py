"""Ready environments, importable alike from a clone and from the wheel.

python -m atroposlib.environments.gsm8k_server process --env.dataset_path test.jsonl

The wheel has the files of the clone's ``environments/`` in this folder.
"""

from pathlib import Path

if not Path(__file__).with_name("common").is_dir():  # a clone
    __path__.append(str(Path(__file__).resolve().parents[2] / "environments"))
