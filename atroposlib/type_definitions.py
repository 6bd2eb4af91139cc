"""Names for the shapes that environments pass around; the shapes are not checked at run time.

Item          the value that ``get_next_item`` returns
Message       a chat turn, optionally with its reward
AgentHistory  per agent, its actions at each step
GameHistory   per step, the observation and the actions of every agent
Evaluation*   the parts of ``metrics.json`` and ``samples.jsonl``
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple, TypedDict, Union

Item = Any
number = Union[int, float]
UUID = str
Content = Union[str, List[Dict[str, Any]]]  # plain text, or OpenAI content parts


class _MessageRequired(TypedDict):
    role: str
    content: Content


class Message(_MessageRequired, total=False):
    """A chat turn. Example: {"role": "user", "content": "2 + 2 = ?"}."""

    reward: Optional[number]
    name: str
    tool_calls: List[Dict[str, Any]]
    tool_call_id: str


class AgentStep(TypedDict, total=False):
    """Messages of an agent at a step, and its reward."""

    step: int
    messages: List[Message]
    reward: number


AgentHistory = Dict[UUID, List[AgentStep]]


class Observation(TypedDict, total=False):
    """Observation of the world: raw from the simulator, and rendered for the model."""

    raw: Dict[str, Any]
    rendered: Optional[Message]


class GameStep(TypedDict, total=False):
    """A step of the world with the parts of all agents."""

    step: int
    observation: Observation
    agent_histories: AgentHistory
    info: Dict[str, Any]
    done: bool
    truncated: bool


GameHistory = Union[List[GameStep], Tuple[GameStep, ...]]

EvaluationMetrics = Dict[str, number]


class EvaluationConfigGeneral(TypedDict, total=False):
    """``config_general`` of metrics.json; the duration is written as text, in seconds."""

    model_name: str
    total_evaluation_time_seconds: str
    generation_parameters: Dict[str, Any]


class EvaluationResults(TypedDict):
    """metrics.json. Keys of ``results`` are ``atropos|<task>|0`` and ``all``."""

    config_general: EvaluationConfigGeneral
    results: Dict[str, EvaluationMetrics]


EvaluationSample = Dict[str, Any]  # a line of samples.jsonl
