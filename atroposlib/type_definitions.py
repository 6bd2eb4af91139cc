"""Names for the shapes that environments pass around; none of them is checked at run time.

Item          whatever ``get_next_item`` returns
Message       one chat turn, optionally with the reward it earned
AgentHistory  per agent, what it did at each step
GameHistory   per step, what the world showed and what every agent did
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
    """One chat turn. Example: {"role": "user", "content": "2 + 2 = ?"}."""

    reward: Optional[number]
    name: str
    tool_calls: List[Dict[str, Any]]
    tool_call_id: str


class AgentStep(TypedDict, total=False):
    """What one agent said at one step, and what it earned."""

    step: int
    messages: List[Message]
    reward: number


AgentHistory = Dict[UUID, List[AgentStep]]


class Observation(TypedDict, total=False):
    """What the world showed: as the simulator gave it, and as the model reads it."""

    raw: Dict[str, Any]
    rendered: Optional[Message]


class GameStep(TypedDict, total=False):
    """One step of the world with every agent's part in it."""

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


EvaluationSample = Dict[str, Any]  # one line of samples.jsonl
