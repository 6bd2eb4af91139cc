"""Words that a user may give a meaning of his own, and ways to put them into an environment."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from atroposlib.envs.base import BaseEnv
from atroposlib.envs.function_env.env import FunctionEnv
from atroposlib.envs.settings.config import SLOT
from atroposlib.envs.teacher_distillation_env import TeacherDistillationEnv
from tests.repo.public.signatures import SIGNATURES

ROOT = Path(__file__).parents[2]
OURS = ("atroposlib/envs", "atroposlib/cli", "atroposlib/validation", "environments/common")
# Attributes of the original's environments; SIGNATURES has the methods.
ATTRIBUTES = frozenset(
    "config server tokenizer workers eval_workers backlog running_items curr_step max_token_len "
    "completion_lengths rollouts_for_wandb items_sent_this_step task_duration "
    "succeeded_task_duration failed_task_duration mainloop_timings workers_added_list "
    "task_successful last_completed_item eval_runner wandb_project wandb_group wandb_prepend "
    "checkpoint_dir checkpoint_interval status_dict env_id jsonl_writer process_mode "
    "n_groups_to_process group_size_to_process derived_batch_size max_num_workers".split()
)
OF_CLASSES = {"name", "env_config_cls", "server_cls", "teacher_server", "teacher_namespace"}
METHODS = {target.rpartition(".")[2] for target in SIGNATURES if "Env." in target}
# The state of these is the environment's in the original too, but the library reads none.
UNREAD = {"process_mode"}
ORIGINAL = (ATTRIBUTES | OF_CLASSES | METHODS) - UNREAD
ENGLISH = """
    accept account action actions active add address adjust advance agent allow amount analyse
    answer answers api append apply approve argue array arrive article ask assign attach attempt
    author avoid balance base batch batches begin behave board body book boost break bridge brief
    bring buffer build bundle busy button cache calculate call cancel capture card carry case
    catch category cell chain chance change channel char chat check choose circle claim clean
    clear client clock close code collect column combine command comment commit compare compile
    complete compute connect connection consume contain content context control convert copy
    correct cost count counter cover crash create credit current cursor curve cut data database
    dataset date debug decide decode deliver delta deny depth describe design detail detect
    difficulty direct discard discount display dispatch distance divide document domain draw drop
    dump duration edit effort emit enable encode end endpoint engine enter entry environment epoch
    error escape estimate evaluator event examples execute executor exit expand expect explain
    explore export extend extract factor fail failure fetch field figure file fill filter final
    find finish fire fit fix flag flow flush focus fold follow force form format forward frame
    free function future game gather generate generation get give global goal grade gradient graph
    grid group groups grow guard guess guide handle handler hash head health help helper hide
    history hold hook host identity image import include index info init initial inject input
    insert inspect instance item items iter iteration job join judge jump keep key kill kind label
    labels language last launch layer lead leader learn leave length level limit line link list
    listen load loader lock log logger loop loss machine machinery main make manager map mark mask
    match matrix measure memory merge message messages metadata method metric metrics minimum
    mirror mode model models module monitor move mutex name_of network next node note notify
    number object observe offset open operate optimize option options order output owner pack
    page pair parallel param parent parse part pass path pause pending perform phase pick ping
    pipeline place plan play player pod point policy poll pool port position post predict prefix
    prepare print priority prize probe problem process processor produce profile progress project
    prompt prompts proof proxy publish pull pulse push put query queue quit random range rank rate
    ratio read reader ready reason receive record records reduce refresh register registry reject
    release remain remove render repeat replace reply report repository request require reset
    resize resolve resource resources respond response restart restore result results resume retry
    return review reward rewards robot role rollout rollouts root round route row rows rule rules
    run runner running runtime sample sampler samples sandbox save scale scan schedule scheduler
    scope score scorer scores scratch screen search seed segment select send sender serve service
    serving session set settings shape share shift show shuffle shutdown signal sink size skip
    slot solution solve solver sort source spawn speed split stack stage start state stats status
    step steps stop storage store stream strategy submit sum summary supply swap switch sync
    system table tag target task tasks teacher teardown temperature test text thread threshold
    tick time timeout timer title token tokens tool tools top total trace tracker train trainer
    transform tree trial trim trust try_again tune turn turns type unit unload update upload use
    user validate value values verifier verify version view visit wait waits wake walk warm warn
    watch weight weights width window wire worker wrap write writer yield_value
""".split()


@cache
def words_of_the_code() -> set[str]:
    """Every attribute, argument and short text that the code of the library names."""
    words: set[str] = set()
    for folder in OURS:
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute):
                    words.add(node.attr)
                elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    words.add(node.name)
                elif isinstance(node, ast.arg):
                    words.add(node.arg)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    words.add(node.value)
    return words


def foreign_words() -> list[str]:
    """All words that belong to the author of an environment."""
    found = words_of_the_code() | {*ENGLISH} | UNREAD
    for env_cls in (BaseEnv, TeacherDistillationEnv, FunctionEnv):
        found |= {*dir(env_cls)}
    taken = ORIGINAL | {SLOT, "_abc_impl", "mro"}
    return sorted(
        word
        for word in found - taken
        if word.isidentifier() and not word.startswith("__") and word != "_"
    )


def fields_of_the_original() -> set[str]:
    """Names of the settings that the original has."""
    from tests.repo.public.test_public_fields import FIELDS

    return {*FIELDS["atroposlib.envs.base:BaseEnvConfig"]}


class Touched(Exception):
    """The library used a value of the user."""


class Untouchable:
    """A value that fails as soon as anything uses it."""

    def __init__(self, word: str) -> None:
        object.__setattr__(self, "word", word)

    def _fail(self, *args: Any, **kwargs: Any) -> Any:
        raise Touched(object.__getattribute__(self, "word"))

    __bool__ = __call__ = __iter__ = __len__ = __getitem__ = __await__ = _fail
    __setattr__ = __eq__ = __lt__ = __str__ = __enter__ = __aenter__ = _fail  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python asks when the class is made
            raise AttributeError(name)
        self._fail()


Way = Callable[[type[Any], Iterable[str]], type[Any]]


def before(base: type[Any], words: Iterable[str]) -> type[Any]:
    class Before(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            for word in words:
                setattr(self, word, Untouchable(word))
            super().__init__(*args, **kwargs)

    return Before


def after(base: type[Any], words: Iterable[str]) -> type[Any]:
    class After(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            for word in words:
                setattr(self, word, Untouchable(word))

    return After


def in_setup(base: type[Any], words: Iterable[str]) -> type[Any]:
    class InSetup(base):  # type: ignore[misc]
        async def setup(self) -> None:
            await super().setup()
            for word in words:
                setattr(self, word, Untouchable(word))

    return InSetup


def of_the_class(base: type[Any], words: Iterable[str]) -> type[Any]:
    return type("OfTheClass", (base,), {word: Untouchable(word) for word in words})


def as_properties(base: type[Any], words: Iterable[str]) -> type[Any]:
    return type("Properties", (base,), {word: property(failing(word)) for word in words})


def as_methods(base: type[Any], words: Iterable[str]) -> type[Any]:
    return type("Methods", (base,), {word: failing(word) for word in words})


def as_coroutines(base: type[Any], words: Iterable[str]) -> type[Any]:
    return type("Coroutines", (base,), {word: failing_async(word) for word in words})


def as_class_methods(base: type[Any], words: Iterable[str]) -> type[Any]:
    return type("ClassMethods", (base,), {word: classmethod(failing(word)) for word in words})


def failing(word: str) -> Callable[..., Any]:
    def method(*args: Any, **kwargs: Any) -> Any:
        raise Touched(word)

    return method


def failing_async(word: str) -> Callable[..., Any]:
    async def method(*args: Any, **kwargs: Any) -> Any:
        raise Touched(word)

    return method


WAYS: list[Way] = [
    *(before, after, in_setup, of_the_class),
    *(as_properties, as_methods, as_coroutines, as_class_methods),
]
#: Ways that need no ``setup`` of the class.
CLASS_WAYS: list[Way] = [way for way in WAYS if way is not in_setup]
