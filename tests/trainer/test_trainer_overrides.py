"""YAML files, key=value and AReaL's names: what they mean and which of them counts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from atroposlib.errors import ConfigError
from example_trainer import TrainingConfig, parse_args
from example_trainer.settings.areal import names as areal_names
from example_trainer.settings.areal.names import Renamed
from example_trainer.settings.args import build_parser, settings_of, with_set
from example_trainer.settings.files import (
    FIELDS,
    SECTIONS,
    parse_override,
    parse_yaml,
    translate,
)
from example_trainer.supervised.loop import parse
from example_trainer.supervised.sft import SftConfig

CONFIGS = Path(__file__).resolve().parents[2] / "example_trainer" / "configs"


def given(*words: str) -> dict:
    """Fields that these words of a command line set."""
    args = build_parser().parse_args(with_set(words))
    return settings_of(args).values


def refusal(*words: str) -> str:
    with pytest.raises(ConfigError) as refused:
        translate([parse_override(word) for word in words])
    return str(refused.value)


@pytest.fixture
def file(tmp_path):
    def write(text: str, name: str = "x.yaml") -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


@pytest.mark.parametrize(
    ("word", "settings"),
    [
        ("lr=1e-5", {"lr": 1e-5}),
        ("optim.lr=1e-5", {"lr": 1e-5}),
        ("+actor.optimizer.lr=1e-5", {"lr": 1e-5}),
        ("loss=gspo", {"loss": "gspo"}),
        ("loss.clip_eps=0.3", {"clip_eps": 0.3}),
        ("run_name=007", {"run_name": "007"}),
        ("run_name=12", {"run_name": "12"}),
        ("run_name=no", {"run_name": "no"}),
        ("run_name='a=b'", {"run_name": "a=b"}),
        ("max_staleness=null", {"max_staleness": None}),
        ("max_staleness=", {"max_staleness": None}),
        ("use_wandb=true", {"use_wandb": True}),
        ("trackers=tensorboard", {"trackers": ["tensorboard"]}),
        (
            "inference_urls=[http://a:1, http://b:2]",
            {"inference_urls": ["http://a:1", "http://b:2"]},
        ),
        ("train_layer_indices=0-3", {"train_layer_indices": "0-3"}),
        (
            'eval_command=[python, e.py, --out, "{out}"]',
            {"eval_command": ["python", "e.py", "--out", "{out}"]},
        ),
    ],
)
def test_an_override_sets_what_a_flag_would(word, settings):
    assert given(word) == settings


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("5", 5),
        ("010", "010"),
        ("0", 0),
        ("-3", -3),
        ("1:30", "1:30"),
        ("on", "on"),
        ("~", None),
    ]
    + [("True", True), (".5", 0.5), ("2024-01-01", "2024-01-01"), ("[1, a]", [1, "a"])],
)
def test_plain_words_are_read_as_yaml_1_2_says(text, value):
    assert parse_yaml(text, "here") == value


def test_the_last_of_flags_and_overrides_counts_and_both_beat_files(file):
    first = file("lr: 1e-3\nseq_len: 64\noptim:\n  adam_eps: 1e-6\n", "a.yaml")
    second = file("actor: {optimizer: {lr: 2e-3}}\nbatch.minibatches: 2\n", "b.yaml")
    words = ("--config", first, "--config", second)
    assert given(*words)["lr"] == 2e-3
    assert given(*words) | {"lr": 0} == {
        "lr": 0,
        "seq_len": 64,
        "adam_eps": 1e-6,
        "minibatches": 2,
    }
    assert given("lr=3e-3", *words)["lr"] == 3e-3
    assert given(*words, "lr=3e-3", "--lr", "4e-3")["lr"] == "4e-3"
    assert given(*words, "--lr", "4e-3", "actor.optimizer.lr=5e-3")["lr"] == 5e-3


def test_an_override_may_stand_between_flags_and_after_a_list():
    words = (
        "--model",
        "m",
        "lr=1",
        "--inference-urls",
        "http://a?x=1",
        "seq_len=8",
        "--use-wandb",
    )
    assert given(*words, "seed=3") == {
        "model_name": "m",
        "lr": 1,
        "inference_urls": ["http://a?x=1"],
        "seq_len": 8,
        "use_wandb": True,
        "seed": 3,
    }
    assert given("--run-name", "a=b") == {"run_name": "a=b"}


def test_references_take_the_value_that_counts_in_the_end(file):
    path = file(
        "actor.path: old\nref.path: ${actor.path}\nrun_name: ${actor.path}-${seed}-${lr}\n"
    )
    found = given("--config", path, "model_name=new", "lr=2")
    assert (found["reference_model"], found["run_name"]) == ("new", "new-0-2")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["lr=${nowhere}"], "not given anywhere"),
        (["lr=${actor.pth}", "actor.path=m"], "did you mean actor.path"),
        (["lr=${adam_eps}", "adam_eps=${lr}"], "refers to itself"),
        (["learning_rate=1"], "is not a setting"),
        (["optim.batch_size=1"], "did you mean .*batch.batch_size"),
        (["actor.optimiser.lr=1"], "did you mean .*actor.optimizer.lr"),
        (["actor.ppo_n_minibatch=1"], "did you mean actor.ppo_n_minibatches"),
        (["total_train_n_seqs=5"], "nothing reads it"),
        (["scheduler.endpoint=x"], "atropos-launch"),
        (["actor.optimizer.offload=true"], "fsdp.offload_params"),
        (["actor.optimizer.type=lion"], "not an optimizer"),
        (["actor.disable_dropout=false"], "never uses dropout"),
        (["actor.reward_norm.mean_level=batch"], "no estimator"),
        (["actor.adv_norm.mean_level=group"], "over the batch"),
        (["actor.rejection_sampling=null"], "importance_weight=none"),
        (["actor.rejection_sampling.metric=kl_k1"], "only the metric ratio"),
        (["actor.overlong_reward_penalty=true"], "needs overlong_tokens"),
    ],
)
def test_what_cannot_be_followed_is_refused_with_a_sentence(words, why):
    assert re.search(why, refusal(*words)), refusal(*words)


@pytest.mark.parametrize(
    ("text", "why"),
    [("a: b: c", "not YAML"), ("- 1", "no settings"), ("lr: 1\nlr: 2", "stands twice")],
)
def test_a_file_that_is_no_settings_is_refused_by_name(file, text, why):
    with pytest.raises(ConfigError, match=why):
        given("--config", file(text))
    with pytest.raises(ConfigError, match="cannot read"):
        given("--config", "absent.yaml")


AREAL = {
    "actor.optimizer.lr=1e-4 actor.optimizer.weight_decay=0.1 actor.optimizer.beta1=0.8": {
        "lr": 1e-4,
        "weight_decay": 0.1,
        "adam_beta1": 0.8,
    },
    "actor.optimizer.type=adam actor.optimizer.gradient_clipping=0.5": {
        "optimizer": "adamw",
        "max_grad_norm": 0.5,
    },
    "actor.eps_clip=0.1 actor.eps_clip_higher=0.3 actor.c_clip=3": {
        "clip_eps": 0.1,
        "clip_eps_high": 0.3,
        "dual_clip": 3,
    },
    "actor.behav_imp_weight_cap=5": {"importance_weight": "mask", "importance_cap": 5},
    "actor.rejection_sampling.level=sequence actor.rejection_sampling.action=clamp"
    " actor.rejection_sampling.upper=2": {
        "importance_level": "sequence",
        "importance_weight": "truncate",
        "importance_cap": 2,
    },
    "actor.kl_ctl=0.1": {"kl_coef": 0.1, "kl_in": "reward", "kl_estimator": "k1"},
    "actor.kl_ctl=0.1 actor.kl_estimator=k3": {
        "kl_coef": 0.1,
        "kl_in": "reward",
        "kl_estimator": "k3",
    },
    "actor.kl_ctl=0": {"kl_coef": 0.0},
    "actor.recompute_logprob=true actor.use_decoupled_loss=true": {"loss": "decoupled"},
    "actor.recompute_logprob=true actor.use_decoupled_loss=false": {"loss": "ppo"},
    "actor.recompute_logprob=false": {"loss": "grpo"},
    "actor.use_decoupled_loss=true actor.m2_threshold=0.05": {
        "loss": "m2po",
        "m2_threshold": 0.05,
    },
    "actor.importance_sampling_level=sequence": {"loss": "gspo"},
    "actor.use_sapo_loss=true actor.sapo_tau_neg=1.1": {
        "loss": "sapo",
        "sapo_tau_negative": 1.1,
    },
    "actor.reward_norm.mean_level=group actor.reward_norm.std_level=group": {
        "advantage": "grpo"
    },
    "actor.reward_norm.mean_level=group actor.reward_norm.std_level=null": {
        "advantage": "dr_grpo"
    },
    "actor.reward_norm.mean_level=group actor.reward_norm.std_level=batch": {
        "advantage": "lite_ppo"
    },
    "actor.reward_norm.mean_level=group actor.reward_norm.mean_leave1out=true": {
        "advantage": "rloo"
    },
    "actor.reward_norm.mean_level=group actor.reward_norm=null": {"advantage": "raw"},
    "actor.adv_norm.mean_level=batch actor.adv_norm.std_level=batch": {
        "advantage_norm": "batch"
    },
    "actor.reward_bias=-0.5 actor.reward_scaling=10 actor.reward_clip=20": {
        "reward_bias": -0.5,
        "reward_scale": 10,
        "reward_clip": 20,
    },
    "actor.overlong_reward_penalty=true actor.overlong_tokens=512"
    " actor.overlong_penalty_factor=0.5 actor.max_new_tokens=4096": {
        "overlong_tokens": 512,
        "overlong_penalty": 0.5,
        "max_new_tokens": 4096,
    },
    "actor.overlong_reward_penalty=false actor.overlong_tokens=512": {"overlong_tokens": 0},
    "train_dataset.batch_size=256 gconfig.n_samples=4": {
        "batch_size": 4,
        "gradient_accumulation_steps": 256,
    },
    "async_training=true rollout.max_head_offpolicyness=4": {"max_staleness": 4},
    "async_training=false rollout.max_head_offpolicyness=4": {"max_staleness": 0},
    "saver.freq_steps=5 saver.freq_epochs=1 saver.freq_secs=null": {
        "checkpoint_interval": 5,
        "save_every_epochs": 1,
    },
    "evaluator.freq_secs=60 recover.freq_steps=2": {
        "eval_every_s": 60,
        "recover_every_steps": 2,
    },
    "recover.mode=on recover.retries=1": {"recover_mode": "auto", "recover_retries": 1},
    "recover.mode=fault": {"recover_mode": "fault"},
    "stats_logger.wandb.mode=online stats_logger.swanlab.mode=disabled"
    " stats_logger.tensorboard.path=x": {"trackers": ["wandb", "tensorboard"]},
    "experiment_name=gsm8k trial_name=1": {"run_name": "gsm8k_1"},
    "cluster.fileroot=/x actor.mb_spec.max_tokens_per_mb=4096 actor.dtype=bfloat16": {
        "save_path": "/x",
        "max_tokens_per_microbatch": 4096,
        "dtype": "bfloat16",
    },
    "actor.weight_update_mode=xccl actor.weight_chunked_mem_mb=512": {
        "weight_publisher": "distributed",
        "publish_bucket_mb": 512,
    },
    "actor.dynamic_sampling=true actor.mask_no_eos_with_zero=true": {
        "dynamic_filter": True,
        "mask_truncated": True,
    },
    "ref=null critic=null actor.optimizer.lr=1 actor.optimizer.lr=null": {},
}


@pytest.mark.parametrize("words", AREAL)
def test_areal_s_names_mean_settings_of_ours(words):
    assert given(*words.split()) == AREAL[words]


def test_every_name_of_areal_leads_to_a_setting_that_exists():
    for name, meaning in areal_names.NAMES.items():
        if isinstance(meaning, Renamed):
            assert meaning.field in FIELDS, name


def test_what_belongs_elsewhere_is_said_once_for_all_of_its_kind():
    words = [
        "sglang.tp_size=2",
        "sglang.dtype=x",
        "gconfig.temperature=1",
        "gconfig.top_p=null",
    ]
    notes = translate([parse_override(word) for word in words]).notes
    assert [note.split(":")[0] for note in notes] == [
        "sglang.tp_size, sglang.dtype",
        "gconfig.temperature",
    ]


def test_every_setting_stands_in_one_section():
    names = [name for model in SECTIONS.values() for name in model.model_fields]
    assert sorted(names) == sorted(FIELDS)


def test_the_example_files_load(capsys):
    lora = parse_args(["--config", str(CONFIGS / "gsm8k_lora.yaml")])
    assert (lora.publisher, lora.lora_r) == ("lora", 32)
    areal = parse_args(["--config", str(CONFIGS / "gsm8k_areal.yaml"), "actor.eps_clip=0.2"])
    assert (areal.loss, areal.advantage, areal.advantage_norm) == (
        "decoupled",
        "grpo",
        "batch",
    )
    assert (areal.sequences_per_step, areal.max_new_tokens, areal.clip_eps) == (
        1024,
        1024,
        0.2,
    )
    assert "note: sglang.context_length" in capsys.readouterr().err


def test_a_wrong_value_is_reported_under_the_name_it_was_given(file, capsys):
    path = file("actor.optimizer.lr: fast\nactor.dtype: float16\n")
    with pytest.raises(SystemExit):
        parse_args(["--config", path])
    said = capsys.readouterr().err
    assert f"actor.optimizer.lr ({path}): Input should be a valid number" in said
    assert "actor.dtype" in said and "--model-name (or model_name=...) is required" in said


def test_help_lists_the_settings_by_section(capsys):
    with pytest.raises(SystemExit):
        parse_args(["--help"])
    said = capsys.readouterr().out
    places = [said.index(f"\n{section}:\n") for section in SECTIONS]
    assert places == sorted(places) and "key=value" in said


OLD_NAMES = [
    ["--warmup-share=0.1", "--lr-decay-share", "0.2"],
    ["warmup_share=0.1", "optim.lr_decay_share=0.2"],
]


@pytest.mark.parametrize("words", OLD_NAMES)
def test_option_names_of_release_0_2_0_are_accepted_with_one_note_each(words, capsys):
    cfg = parse_args(["--model", "m", *words])
    assert (cfg.warmup_ratio, cfg.lr_decay_ratio) == (0.1, 0.2)
    notes = capsys.readouterr().err
    assert notes.count("warmup_share is now named warmup_ratio") == 1
    assert notes.count("lr_decay_share is now named lr_decay_ratio") == 1


def test_the_last_of_an_old_and_a_new_option_name_counts(file):
    path = file("optim: {warmup_share: 0.1}\nppo_epochs: ${batch.epochs_per_batch}")
    words = ["--config", path, "--epochs-per-batch", "3", "max_tokens_per_pass=64"]
    cfg = parse_args(["--model", "m", *words, "--warmup-ratio", "0.5"])
    assert (cfg.warmup_ratio, cfg.max_tokens_per_microbatch, cfg.ppo_epochs) == (0.5, 64, 3)


def test_old_option_names_are_accepted_in_code_and_logged(caplog):
    cfg = TrainingConfig(model_name="m", epochs_per_batch=2)
    assert cfg.ppo_epochs == 2
    assert caplog.messages == ["epochs_per_batch is now named ppo_epochs"]
    with pytest.raises(ValidationError, match="old name of ppo_epochs"):
        TrainingConfig(model_name="m", epochs_per_batch=2, ppo_epochs=3)


def test_training_on_files_accepts_old_option_names(file):
    words = ["--model", "m", "--train-file", "t", "--config", file("warmup_share: 0.1")]
    cfg = parse(SftConfig, "atropos-sft", "", [*words, "--max-tokens-per-pass", "64"])
    assert (cfg.warmup_ratio, cfg.max_tokens_per_microbatch) == (0.1, 64)
