"""Trainer and sampler on every token of real environments: one model, one real local server.

Each environment writes its groups as ``process`` does. They go through the wire, become rows,
and the trainer scores each token. In float32 its logprob is the sampler's; a row that does
not know how it was sampled is refused with the cause.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from atroposlib.api.codec import read_group
from atroposlib.envs import environment
from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig
from atroposlib.envs.rollout.groups import from_nodes
from atroposlib.errors import InvalidGroup, StaleWeights
from atroposlib.inference.engine.core import EngineLimits
from atroposlib.inference.engine.engine import Engine
from atroposlib.inference.engine.served_model import load_model
from atroposlib.inference.http.app import create_app
from atroposlib.testing.tiny import char_tokenizer, write_tiny_model
from atroposlib.wire import ScoredData
from atroposlib.wire.binary import pack_group, unpack_group
from example_trainer.advantage.prepare import prepare_batch
from example_trainer.data.rows import Row, at_trained, to_rows
from example_trainer.model import loading
from example_trainer.model.model_dir import TrainerState
from example_trainer.model.policy import Policy
from example_trainer.settings.config import TrainingConfig
from example_trainer.state import StopSignal
from example_trainer.update.step import learn
from tests.envs.old_style.shapes import NodesEnv
from tests.serving import served

pytestmark = pytest.mark.slow
NATS = 1e-4
TASKS = [{"id": str(i), "text": text} for i, text in enumerate(("ab", "cde", "f", "gh"))]


class TokensEnv(NodesEnv):
    """Old style without a session: token requests, joined over two turns by the environment."""

    name = "old_tokens"

    async def collect_trajectories(self, item):
        group = {"tokens": [], "masks": [], "scores": [], "inference_logprobs": []}
        for i in range(self.config.group_size):
            tokens = self.tokenizer.encode(item["question"])
            masks, logprobs = [-100] * len(tokens), [1.0] * len(tokens)
            for temperature in (0.5, 1.0):
                _, (new,), (values,), _ = await self.server.tokens_and_logprobs_completion(
                    input_ids=tokens, max_tokens=6, n=1, temperature=temperature
                )
                between = self.tokenizer.encode(" so ")
                tokens = tokens + new + between
                masks += new + [-100] * len(between)
                logprobs += values + [1.0] * len(between)
            group["tokens"].append(tokens)
            group["masks"].append(masks)
            group["inference_logprobs"].append(logprobs)
            group["scores"].append(float(i))
        return group, []


class FromNodesEnv(NodesEnv):
    """New style, and no sampling parameter is named."""

    name = "from_nodes"

    async def collect_trajectories(self, item):
        async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
            reply = await managed.chat_completion(
                messages=[{"role": "user", "content": item["question"]}],
                n=self.config.group_size,
                max_tokens=8,
                temperature=self.config.temperature,
            )
            nodes = managed.nodes_for(reply)
        return from_nodes(nodes, [float(i) for i in range(len(nodes))]), []


@environment(dataset=TASKS, group_size=2, max_tokens=6, eval_items=0)
async def two_temperatures(task, model):
    # Few tokens: one that the text leaves out, such as an end of turn, would begin a new row.
    first = await model.complete(task["text"], temperature=0.5, max_tokens=2)
    second = await model.complete(task["text"] + first + " so ", temperature=1.0)
    return float(len(second))


@environment(dataset=TASKS, group_size=2, max_tokens=12, eval_items=0, temperature=0.7)
async def nucleus(task, model):
    return float(len(await model.chat(task["text"], top_p=0.3, top_k=9)))


@environment(dataset=TASKS, group_size=2, max_tokens=8, eval_items=0, temperature=0.7)
async def agent(task, model):
    async with await model.openai() as client:
        history = [{"role": "user", "content": task["text"]}]
        for _ in range(2):
            said = await client.chat.completions.create(
                model="any", messages=history, max_tokens=5, temperature=0.1
            )
            text = said.choices[0].message.content or ""
            history += [
                {"role": "assistant", "content": text},
                {"role": "user", "content": "and"},
            ]
    return float(len(text))


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("truth") / "tiny", seed=0)


@pytest.fixture(scope="module")
def url(model_dir: Path) -> Iterator[str]:
    torch.set_num_threads(1)
    engine = Engine(load_model(str(model_dir)), EngineLimits(), seed=0, num_threads=1)
    engine.start()
    with served(create_app(engine)) as root:
        yield f"{root}/v1"
    engine.close()


@pytest.fixture(scope="module")
def settings(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainingConfig:
    return TrainingConfig(
        model_name=str(model_dir),
        device="cpu",
        seq_len=256,
        lr=1e-12,
        save_path=str(tmp_path_factory.mktemp("truth-run")),
        inference_urls=[],
    )


@pytest.fixture(scope="module")
def policy(settings: TrainingConfig) -> Policy:
    return loading.load_policy(settings)


def written(env_cls: type[BaseEnv], url: str, path: Path, **fields: object) -> list[dict]:
    """The groups that ``process`` writes: two items."""
    config = {
        "use_wandb": False,
        "group_size": 2,
        "total_steps": 2,
        "data_path_to_save_groups": str(path),
        "ensure_scores_are_not_same": False,
        "max_token_length": 256,
        **fields,
    }
    server = APIServerConfig(base_url=url, server_type="vllm", model_name="tiny")
    config_cls: type[BaseEnvConfig] = env_cls.env_config_cls
    env = env_cls(config_cls(**config), [server])
    env.tokenizer = char_tokenizer()

    async def process() -> None:
        await env.process_manager()
        await env.close()

    asyncio.run(process())
    return [json.loads(line) for line in path.read_text().splitlines()]


def received(group: dict, *, binary: bool) -> ScoredData:
    """The group as the trainer gets it from the rollout API."""
    fields = {k: v for k, v in group.items() if k in ScoredData.__struct_fields__}
    if binary:
        return unpack_group(pack_group(fields))
    kept = read_group(msgspec.json.encode(fields), "application/json").payload
    return unpack_group(kept)


def differences(policy: Policy, rows: list[Row]) -> list[float]:
    return [
        abs(ours - theirs)
        for row, ours_T in zip(rows, policy.trained_logprobs(rows))
        for ours, theirs in zip(ours_T, at_trained(row, row.behaviour_logprobs))
    ]


CASES = {
    "old style, a session": (NodesEnv, {"temperature": 0.7}, {0.7}),
    "old style, token requests": (TokensEnv, {}, {0.5, 1.0}),
    "new style": (FromNodesEnv, {"temperature": 0.7}, {0.7}),
    "turns of a function": (two_temperatures, {"group_size": 6}, {0.5, 1.0}),
    "top-p and top-k": (nucleus, {}, {0.7}),
    "agent behind the proxy": (agent, {}, {0.7}),
}


@pytest.mark.parametrize("name", CASES)
def test_every_token_has_the_same_logprob_at_sampler_and_trainer(name, url, policy, tmp_path):
    env_cls, fields, temperatures = CASES[name]
    groups = written(env_cls, url, tmp_path / "groups.jsonl", **fields)
    assert len(groups) >= 2  # a conversation of an agent may be rewritten, and is more rows
    for binary in (False, True):
        batch = to_rows([received(group, binary=binary) for group in groups], 256)
        assert batch.notes == set() and batch.counts["rows_without_temperature"] == 0
        rows = [row for row in batch.rows if row.trained]
        assert {t for row in rows for t in row.trained_temperatures} == temperatures
        several = len(temperatures) > 1
        assert any({*row.trained_temperatures} == temperatures for row in rows) or not several
        apart = differences(policy, rows)
        assert len(apart) > 8 and max(apart) < NATS
        if name != "old style, token requests":  # which ends in tokens of the environment
            assert {row.finish_reason for row in rows} <= {"stop", "length"}


def unlabelled(groups: list[dict], **more: object) -> list[ScoredData]:
    """The groups as environments sent them before: no sampling, no temperature."""
    gone = {"sampling": None, "generation_params": None, "overrides": None}
    return [received({**group, **gone, **more}, binary=False) for group in groups]


def trained_on(cfg: TrainingConfig, policy: Policy, groups: list[ScoredData], version: int):
    batch = to_rows(groups, 256, unknown_temperature=cfg.unknown_temperature)
    prepared = prepare_batch(batch.rows, cfg, version)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.0)
    state = TrainerState("run", version, version, None)
    return learn(cfg, policy, optimizer, prepared, state, StopSignal())


@pytest.fixture(scope="module")
def cold(url: str, tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """Groups sampled at temperature 0.7."""
    path = tmp_path_factory.mktemp("cold") / "groups.jsonl"
    return written(NodesEnv, url, path, temperature=0.7)


@pytest.mark.parametrize("behind", [0, 1])
def test_unlabelled_rows_of_another_temperature_are_refused_and_it_is_named(
    cold, settings, policy, behind
):
    versions = [[-1 if m == -100 else 5 for m in row] for row in cold[0]["masks"]]
    groups = unlabelled(cold[:1], versions=versions)
    with pytest.raises(StaleWeights, match="at temperature 0.7, and their rows name none"):
        trained_on(settings, policy, groups, version=5 + behind)


def test_labelled_rows_pass_and_the_metrics_say_what_was_compared(cold, settings, policy):
    for behind, compared in ((0, True), (1, False)):
        group = dict(cold[0])
        group["versions"] = [[-1 if m == -100 else 5 for m in row] for row in group["masks"]]
        told = trained_on(settings, policy, [received(group, binary=True)], 5 + behind)
        assert (told["logprob_mismatch_max"] is not None) is compared
        name = "logprob_mismatch_max" if compared else "logprob_drift_max"
        assert told[name] < NATS
    told = trained_on(settings, policy, unlabelled(cold, versions=None), 5)
    assert told["logprob_mismatch_max"] is None and "logprob_drift_max" not in told


def test_rows_without_a_temperature_are_refused_if_so_wished(cold):
    with pytest.raises(InvalidGroup, match="without the temperature"):
        to_rows(unlabelled(cold), 256, unknown_temperature="refuse")
    assert to_rows(unlabelled(cold), 256).notes
    assert not to_rows(unlabelled(cold), 256, unknown_temperature="assume_1").notes
