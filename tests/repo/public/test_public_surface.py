"""How the promised names are called: parameters and their defaults.

A parameter may be added behind those of this table if it has a default; nothing here may
change without a major version. Where a name is imported from stands in
test_public_imports.py, what the configurations hold in test_public_fields.py.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from tests.repo.public.signatures import OURS, SIGNATURES
from tests.repo.public.surface import load, written


def same_default(promised: Any, real: Any) -> bool:
    return promised == real or promised == getattr(real, "__name__", None)


@pytest.mark.parametrize("target", SIGNATURES)
def test_promised_parameters_are_accepted(target):
    real = list(inspect.signature(load(target)).parameters.values())
    takes_anything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in real)
    positional = [p for p in real if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    promised = written(SIGNATURES[target])
    for i, (name, default) in enumerate(promised):
        if name.startswith("**"):
            # Keywords: taken as they come, or each by its name.
            keyword = [p for p in real if p.kind is inspect.Parameter.KEYWORD_ONLY]
            assert takes_anything or keyword, f"{target} takes no keywords"
        elif name.startswith("*"):
            assert any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in real)
        else:
            assert i < len(positional), f"{target} has no parameter {name}"
            found = positional[i]
            assert target in OURS or found.name == name
            # A promised parameter without a default may have got one; never the reverse.
            if default is not inspect.Parameter.empty:
                assert same_default(default, found.default), f"{target}: {name}"
    names = {name.lstrip("*") for name, _ in promised}
    by_position = {p.name for p in positional[: len(promised)]}
    required = [
        p.name
        for p in real
        if p.default is inspect.Parameter.empty
        and p.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        and p.name not in names | by_position
    ]
    if not any(name.startswith("**") for name, _ in promised):
        assert required == [], f"{target} wants more than was promised"


def test_names_of_ours_belong_to_the_table():
    assert OURS <= SIGNATURES.keys()


def test_the_page_of_migration_counts_the_table(root):
    page = (root / "docs/migrating.md").read_text()
    assert f"{len(SIGNATURES)} callables, {len(OURS)} of them by position only" in page


COROUTINES = (
    "setup get_next_item collect_trajectory collect_trajectories postprocess_histories evaluate "
    "wandb_log cleanup add_rollouts_for_wandb create_rollout_table env_step_checks "
    "add_train_workers setup_wandb register_env get_server_info get_status handle_env "
    "handle_send_to_api evaluate_log env_manager process_manager"
).split()


@pytest.mark.parametrize("name", COROUTINES)
def test_hooks_that_are_awaited_are_coroutines(name):
    assert inspect.iscoroutinefunction(load(f"atroposlib.envs.base:BaseEnv.{name}"))


def test_class_methods_and_abstract_methods_stay_as_promised():
    base = load("atroposlib.envs.base:BaseEnv")
    for name in ("config_init", "cli"):
        assert inspect.ismethod(getattr(base, name))
    assert base.__abstractmethods__ == {"get_next_item", "evaluate"}
    assert (base.name, base.env_config_cls.__name__, base.server_cls.__name__) == (
        None,
        "BaseEnvConfig",
        "APIServer",
    )
