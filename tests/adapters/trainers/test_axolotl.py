"""axolotl-plugin-atropos, which trains by axolotl, on a real run-api: its registration and rows."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from atroposlib.api.server import create_app
from tests.adapters.trainers.posted import group_of, post
from tests.api.processes import serving
from tests.serving import served

PACKAGE = "plugin_atropos"
pytestmark = pytest.mark.filterwarnings("default")  # of axolotl's own imports
PAD, WAIT_S = 0, 60.0


class Trainer:
    """The plugin's dataset and registration, in the order in which axolotl calls them."""

    def __init__(self, url, num_generations, **settings):
        from axolotl.utils.dict import DictDefault
        from plugin_atropos import AtroposPlugin
        from plugin_atropos.datasets import get_dataset

        host, port = url.rsplit(":", 1)
        given = {
            "atropos_server_host": host,
            "atropos_server_port": int(port),
            "atropos_starting_step": 0,
            "gradient_accumulation_steps": 1,
            "max_steps": 5,
            "micro_batch_size": num_generations,
            "output_dir": "out",
            "save_steps": 5,
            "sequence_len": 64,
            "trl": {"num_generations": num_generations},
            "world_size": 1,
        }
        cfg = DictDefault(given | settings)
        dataset = get_dataset(cfg, PAD)  # its thread asks for batches from here on
        self.provider = dataset._ex_iterable.generate_examples_fn.__self__
        self._rows = iter(dataset)
        AtroposPlugin().post_trainer_create(cfg, None)

    def pause(self):
        """No further call begins; the last one has its reply."""
        self._kept, self.provider.queue_threshold = self.provider.queue_threshold, 0
        time.sleep(1.0)  # its calls are 0.5 s apart

    def resume(self):
        self.provider.queue_threshold = self._kept

    def groups(self, count):
        """The next rows of its dataset, of ``num_generations`` sequences each."""
        return [
            {name: tensor.tolist() for name, tensor in next(self._rows).items()}
            for _ in range(count)
        ]


@contextmanager
def training(url, num_generations, **settings):
    trainer = Trainer(url, num_generations, **settings)
    try:
        # Environments wait for the first batch that a registered trainer asks for.
        until(lambda: "env_id" in post(url, [], group_size=num_generations))
        yield trainer
    finally:
        trainer.provider.stop()


def until(holds):
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def api():
    with served(create_app()) as url:
        yield url


def sequences(rows):
    """The tokens of each sequence without its padding."""
    return [
        prompt + [token for token, kept in zip(completion, mask) if kept]
        for prompt, completion, mask in zip(
            rows["prompt_ids"], rows["completion_ids"], rows["completion_mask"]
        )
    ]


def advantages(rows):
    return [value for (value,) in rows["advantages"]]


@pytest.mark.parametrize(
    ("scores", "wanted"),
    [  # less the mean, by the deviation of the group
        ([1.0, 0.0], [1.0, -1.0]),
        ([1.0, 0.0, 0.0, 1.0], [1.0, -1.0, -1.0, 1.0]),
        ([3.0, 1.0, 2.0, 2.0], [2**0.5, -(2**0.5), 0.0, 0.0]),
        ([4.0, 0.0] * 4, [1.0, -1.0] * 4),
        ([0.5] * 8, [0.0] * 8),
    ],
)
def test_tokens_are_those_posted_and_advantages_those_of_the_scores(api, scores, wanted):
    sent = [group_of(name, scores, prompt=n) for name, n in (("a", 4), ("b", 7))]
    with training(api, len(scores)) as trainer:
        post(api, sent)
        for rows, group in zip(trainer.groups(2), sent):
            assert sequences(rows) == group.tokens
            assert advantages(rows) == pytest.approx(wanted)
            prompt = group.masks[0].count(-100)
            assert {len(ids) for ids in rows["prompt_ids"]} == {prompt}


def test_an_override_takes_the_advantage_and_masks_are_not_read(api):
    left_out = [{}, {"set_advantage_to_zero": True}]
    sent = group_of("turns", [1.0, 0.0], turns=3, overrides=left_out)
    with training(api, 2) as trainer:
        post(api, [sent])
        [rows] = trainer.groups(1)
    assert sequences(rows) == sent.tokens
    assert advantages(rows) == pytest.approx([1.0, 0.0])
    for mask, labels in zip(rows["completion_mask"], sent.masks):
        trained = sum(mask)  # the tokens of the environment between two turns too
        assert trained == len(labels) - 5 == 4 + sum(label != -100 for label in labels)


def test_the_prompt_is_what_the_sequences_begin_with_alike(api):
    begins = [[5, 6, 7, 20, 21], [5, 6, 7, 20, 22], [5, 6, 7, 20]]  # sampled from 20 on
    other = [[5, 6, 20], [5, 9, 20], [5, 6, 21]]  # two prompts in a group
    sent = [group_of(name, [1.0, 0.0, 0.5]) for name in ("begins", "other")]
    for group, tokens, prompt in zip(sent, (begins, other), (3, 2)):
        group.tokens = tokens
        group.masks = [[-100] * prompt + row[prompt:] for row in tokens]
        group.inference_logprobs = group.versions = None
    with training(api, 3) as trainer:
        post(api, sent)
        first, second = trainer.groups(2)
    assert sequences(first) == begins and sequences(second) == other
    assert first["prompt_ids"] == [[5, 6, 7, 20]] * 3  # its first sampled token is not trained
    assert second["prompt_ids"] == [[5]] * 3  # and tokens of a prompt are
    assert sum(first["completion_mask"][2]) == 0


def test_a_batch_of_several_groups_and_environments_comes_whole(api):
    sent = [
        group_of(name, [1.0, 0.0, 0.25, 0.5], prompt=n) for n, name in enumerate("abcd", 3)
    ]
    with training(api, 4, gradient_accumulation_steps=2) as trainer:
        assert httpx.get(f"{api}/info").json()["batch_size"] == 8
        post(api, sent[:2], desired_name="one", min_batch_allocation=0.5)
        post(api, sent[2:], desired_name="two", min_batch_allocation=0.5)
        found = [sequences(rows) for rows in trainer.groups(4)]
    assert sorted(found) == sorted(group.tokens for group in sent)
    first = {sent.index(group) for group in sent if group.tokens in found[:2]}
    assert len(first & {0, 1}) == len(first & {2, 3}) == 1


def test_larger_groups_are_cut_and_smaller_ones_lost(api, capsys):
    """The plugin stacks ``num_generations`` sequences, which need one length of prompt."""
    large = group_of("large", [1.0, 0.0] * 4)
    small = [group_of("small", [1.0, 0.0]), group_of("longer", [1.0, 0.0], prompt=9)]
    with training(api, 4, gradient_accumulation_steps=2) as trainer:
        post(api, [large])
        halves = trainer.groups(2)
        assert [*sequences(halves[0]), *sequences(halves[1])] == large.tokens
        assert [*advantages(halves[0]), *advantages(halves[1])] == [1.0, -1.0] * 4
        capsys.readouterr()
        post(api, [*small, *(group_of(name, [1.0, 0.0]) for name in "cd")])
        lost = []
        until(lambda: lost.append(capsys.readouterr().out) or "must have the same" in lost[-1])
        assert trainer.provider.data_queue.empty()


def test_a_restart_of_the_api_loses_no_group_and_brings_none_twice(tmp_path):
    """Between the two processes a call of the plugin fails; it repeats it after 4 s."""
    sent = [group_of(name, [1.0, 0.0]) for name in "abc"]
    with ExitStack() as life:
        with serving(tmp_path / "api") as (_, url):
            trainer = life.enter_context(training(url, 2))
            post(url, sent[:1])
            found = trainer.groups(1)
            trainer.pause()
            post(url, sent[1:2])
        trainer.resume()
        time.sleep(1.0)  # a call finds no API
        with serving(tmp_path / "api", port=int(url.rsplit(":", 1)[1])):
            post(url, sent[2:])
            found += trainer.groups(2)
            tokens = sorted(sequences(rows) for rows in found)
            assert tokens == sorted(group.tokens for group in sent)
            time.sleep(1.5)  # three more of its calls
            assert trainer.provider.data_queue.empty()


def test_a_registration_without_a_project_of_wandb_is_taken(api):
    with training(api, 2):
        assert httpx.get(f"{api}/wandb_info").json() == {"group": "default", "project": ""}
