"""Every option of AReaL's reference, alone in a small run: its value arrives, is noted or refused.

option=value [further options] -> place=value     in the plan, or at cfg. in the trainer
option=value -> note: text                        noted by the option's name
option=value -> error: text                       refused with a sentence
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from atroposlib.errors import ConfigError
from atroposlib.settings.merge import assignments_of
from atroposlib.settings.yaml_file import parse_yaml, read_yaml
from example_trainer.launch.areal import options
from example_trainer.launch.plan import read_plan, trainer_settings
from example_trainer.settings.files import parse_override

BASE = str(Path(__file__).parent / "files/base.yaml")
REFERENCE = Path(__file__).parents[2] / "settings/areal/files/reference.yaml"
TABLE = """
experiment_name=other -> name=other_t
trial_name=other -> out=/r/e/other
cluster.cluster_name=big -> note: places the processes
cluster.fileroot=/x -> out=/x/e/t
cluster.n_nodes=1 cluster.n_gpus_per_node=1 -> error: 2 GPUs are allocated
cluster.n_gpus_per_node=2 cluster.n_nodes=4 allocation_mode=sglang:d1+fsdp:d4 -> trainer.nodes=2
allocation_mode=sglang:d3t2+fsdp:d8 -> inference.count=3
seed=7 -> env.seed=7
total_train_epochs=2 -> cfg.training_steps=4982
total_train_steps=9 -> cfg.training_steps=9
total_train_n_seqs=9 -> error: nothing reads it in AReaL
tokenizer_path=tok -> env.tokenizer_name=tok
async_training=false rollout.max_head_offpolicyness=3 -> cfg.max_staleness=0
train_dataset.path=other -> error: write --env FILE or --env NAME
train_dataset.type=sft -> cfg.loss=cross_entropy
train_dataset.batch_size=5 -> cfg.gradient_accumulation_steps=5
train_dataset.shuffle=false -> note: orders its tasks by env.seed
train_dataset.pin_memory=true -> note: no loader of batches
train_dataset.num_workers=3 -> note: no loader of batches
train_dataset.drop_last=false -> note: no loader of batches
train_dataset.max_length=100 -> cfg.seq_len=164
valid_dataset.path=other -> note: its own held-out tasks
valid_dataset.type=rl -> note: its own held-out tasks
valid_dataset.batch_size=4 -> note: its own held-out tasks
valid_dataset.shuffle=false -> note: its own held-out tasks
valid_dataset.pin_memory=true -> note: no loader of batches
valid_dataset.num_workers=3 -> note: no loader of batches
valid_dataset.drop_last=false -> note: no loader of batches
valid_dataset.max_length=9 -> note: its own held-out tasks
saver.experiment_name=x -> note: of all parts of the run
saver.trial_name=x -> note: of all parts of the run
saver.fileroot=/s -> cfg.save_path=/s
saver.freq_epochs=2 -> cfg.save_every_epochs=2
saver.freq_steps=7 -> cfg.checkpoint_interval=7
saver.freq_secs=60 -> cfg.save_every_s=60
evaluator.experiment_name=x -> note: of all parts of the run
evaluator.trial_name=x -> note: of all parts of the run
evaluator.fileroot=/s -> note: named by run_name
evaluator.freq_epochs=1 -> env.steps_per_eval=2491
evaluator.freq_steps=4 -> env.steps_per_eval=4
evaluator.freq_secs=60 -> note: environments evaluate by steps
stats_logger.experiment_name=x -> note: of all parts of the run
stats_logger.trial_name=x -> note: of all parts of the run
stats_logger.fileroot=/s -> cfg.log_dir=/s
recover.experiment_name=x -> note: of all parts of the run
recover.trial_name=x -> note: of all parts of the run
recover.fileroot=/s -> note: named by run_name
recover.freq_epochs=2 -> cfg.recover_every_epochs=2
recover.freq_steps=7 -> cfg.recover_every_steps=7
recover.freq_secs=60 -> cfg.recover_every_s=60
recover.mode=fault -> cfg.recover_mode=fault
recover.retries=5 -> cfg.recover_retries=5
launcher.inference_server_cpus_per_gpu=3 -> slurm.inference.cpus-per-task=3
launcher.inference_server_mem_per_gpu=99 -> slurm.inference.mem=99M
launcher.trainer_cpus_per_gpu=3 -> slurm.trainer.cpus-per-task=3
launcher.trainer_mem_per_gpu=99 -> slurm.trainer.mem=99M
launcher.inference_server_env_vars='A=b' -> inference.env.A=b
launcher.trainer_env_vars='A=b' -> trainer.env.A=b
scheduler.endpoint=x -> note: environments reward
scheduler.deploy_mode=x -> note: environments reward
scheduler.functioncall_service_domain=x -> note: environments reward
scheduler.reward_functioncall_config.a=1 -> note: environments reward
scheduler.reward_model_path=x -> note: environments reward
scheduler.reward_model_service_url=x -> note: environments reward
gconfig.n_samples=6 -> env.group_size=6
gconfig.max_new_tokens=32 -> openai.sampling.max_tokens=32
gconfig.min_new_tokens=3 -> openai.sampling.min_tokens=3
gconfig.max_tokens=500 -> cfg.seq_len=500
gconfig.greedy=true -> env.temperature=0.0
gconfig.top_p=0.9 -> openai.sampling.top_p=0.9
gconfig.top_k=40 -> openai.sampling.top_k=40
gconfig.temperature=0.7 -> env.temperature=0.7
gconfig.stop_token_ids=[5] -> openai.sampling.stop_token_ids=[5]
gconfig.stop=[a] -> openai.sampling.stop=[a]
gconfig.frequency_penalty=0.5 -> openai.sampling.frequency_penalty=0.5
rollout.experiment_name=x -> note: of all parts of the run
rollout.trial_name=x -> note: of all parts of the run
rollout.max_concurrent_rollouts=9 -> env.max_num_workers=9
rollout.queue_size=9 -> note: bounds the queue
rollout.consumer_batch_size=5 -> cfg.gradient_accumulation_steps=5
rollout.max_head_offpolicyness=3 -> cfg.max_staleness=3
rollout.enable_rollout_tracing=true -> note: --log-level debug
rollout.check_trajectory_format=true -> note: checks every group
rollout.schedule_policy=x -> note: most free slots
rollout.setup_timeout=30 -> inference.ready_within_s=30
rollout.request_timeout=50 -> openai.timeout=50
rollout.request_retries=9 -> note: three attempts
actor.experiment_name=x -> cfg.run_name=x_t
actor.trial_name=x -> cfg.run_name=e_x
actor.path=other -> cfg.model_name=other
actor.attn_impl=x -> note: chosen by the trainer
actor.init_from_scratch=true -> cfg.init_from_scratch=true
actor.is_critic=true -> note: critic.path trains a value model
actor.mb_spec.n_mbs=2 -> note: cut by max_tokens_per_microbatch
actor.mb_spec.granularity=2 -> note: cut by max_tokens_per_microbatch
actor.mb_spec.max_tokens_per_mb=999 -> cfg.max_tokens_per_microbatch=999
actor.pad_to_maximum=true -> note: chosen by the trainer
actor.disable_dropout=true -> note: has dropout here
actor.gradient_checkpointing=false -> cfg.gradient_checkpointing=false
actor.dtype=float32 -> cfg.dtype=float32
actor.grad_reduce_dtype=bfloat16 -> note: summed in float32
actor.optimizer.type=sgd -> cfg.optimizer=sgd
actor.optimizer.type=empty -> error: is not an optimizer here
actor.optimizer.lr=0.5 -> cfg.lr=0.5
actor.optimizer.weight_decay=0.5 -> cfg.weight_decay=0.5
actor.optimizer.beta1=0.5 -> cfg.adam_beta1=0.5
actor.optimizer.beta2=0.5 -> cfg.adam_beta2=0.5
actor.optimizer.eps=0.5 -> cfg.adam_eps=0.5
actor.optimizer.min_lr_ratio=0.5 -> cfg.min_lr_ratio=0.5
actor.optimizer.lr_scheduler_type=linear -> cfg.lr_schedule=linear
actor.optimizer.warmup_steps_proportion=0.5 -> cfg.warmup_ratio=0.5
actor.optimizer.offload=true -> error: fsdp.offload_params does it
actor.optimizer.initial_loss_scale=2 -> note: float16 only
actor.optimizer.min_loss_scale=2 -> note: float16 only
actor.optimizer.loss_scale_window=2 -> note: float16 only
actor.optimizer.hysteresis=3 -> note: float16 only
actor.optimizer.gradient_clipping=0.5 -> cfg.max_grad_norm=0.5
actor.backend=fsdp:d2 allocation_mode=null rollout.backend=sglang:d1 -> trainer.nproc=2
actor.fsdp.offload_params=true -> cfg.cpu_offload=true
actor.ds_auto_tp.autotp_size=2 -> note: by FSDP2
actor.group_size=2 -> note: carry their own ids
actor.ppo_n_minibatches=3 -> cfg.minibatches=3
actor.eps_clip=0.3 -> cfg.clip_eps=0.3
actor.eps_clip_higher=0.3 -> cfg.clip_eps_high=0.3
actor.c_clip=3 -> cfg.dual_clip=3
actor.temperature=0.5 -> note: each row's temperature
actor.reward_norm.mean_level=batch actor.reward_norm.std_level=batch -> cfg.advantage=reinforce_pp
actor.reward_norm.std_level=null -> cfg.advantage=dr_grpo
actor.reward_norm.group_size=2 -> note: group_size has no effect
actor.reward_scaling=3 -> cfg.reward_scale=3
actor.reward_bias=3 -> cfg.reward_bias=3
actor.reward_clip=3 -> cfg.reward_clip=3
actor.overlong_reward_penalty=true actor.overlong_tokens=8 -> cfg.overlong_tokens=8
actor.overlong_reward_penalty=true -> error: needs overlong_tokens
actor.overlong_tokens=8 -> note: no effect without overlong_reward_penalty
actor.overlong_penalty_factor=0.5 actor.overlong_reward_penalty=true actor.overlong_tokens=8 -> cfg.overlong_penalty=0.5
actor.mask_no_eos_with_zero=true -> cfg.mask_truncated=true
actor.discount=0.5 critic.path=m actor.reward_norm=null -> cfg.gamma=0.5
actor.gae_lambda=0.5 critic.path=m actor.reward_norm=null -> cfg.gae_lambda=0.5
actor.adv_norm.mean_level=group actor.adv_norm.std_level=group -> cfg.advantage_norm=group
actor.adv_norm.std_level=null -> error: normalised over the batch
actor.adv_norm.group_size=2 -> note: group_size has no effect
actor.kl_ctl=0.3 ref.path=r -> cfg.kl_coef=0.3
actor.recompute_logprob=true -> cfg.loss=ppo
actor.use_decoupled_loss=true -> cfg.loss=decoupled
actor.behav_imp_weight_cap=3 -> cfg.importance_cap=3
actor.dynamic_sampling=true -> cfg.dynamic_filter=true
actor.log_agent_stats=true -> note: always logged
actor.log_agent_stats_keys=[a] -> note: always logged
actor.max_new_tokens=99 -> cfg.max_new_tokens=99
ref.path=r -> cfg.reference_model=r
sglang.model_path=other -> inference.model=other
sglang.context_length=999 -> inference.max_model_len=999
sglang.mem_fraction_static=0.5 -> inference.memory_share=0.5
sglang.random_seed=3 -> note: follows from allocation_mode
sglang.dp_size=3 -> note: follows from allocation_mode
"""  # noqa: E501
ROWS = [line.partition(" -> ")[::2] for line in TABLE.strip().splitlines()]
OPTIONS = [entry.key for entry in assignments_of(read_yaml(REFERENCE))]
NAMED = {words.partition("=")[0] for words, _ in ROWS}


@pytest.fixture(autouse=True, scope="module")
def fields_are_read_once():
    """Each environment is imported by another process, once for all options."""
    patch = pytest.MonkeyPatch()
    patch.setattr(options, "fields_of", functools.cache(options.fields_of))
    yield
    patch.undo()


def run_of(words: list[str]):
    """Plan, settings of the trainer, and notes of the base with further options."""
    plan = read_plan([BASE], [parse_override(word) for word in words], on_cluster=True)
    settings, cfg = trainer_settings(plan)
    return plan, cfg, settings.notes


def value_at(place: str, words: list[str]) -> Any:
    plan, cfg, _ = run_of(words)
    head, _, rest = place.partition(".")
    if head == "cfg":
        return getattr(cfg, rest)
    value: Any = plan.environments[0].config if head in ("env", "openai") else plan
    for name in place.split("."):
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name)
    return value


def value_without(place: str, words: list[str]) -> Any:
    """The value without the first option; None: the others alone are no run."""
    try:
        return value_at(place, words[1:])
    except ConfigError:
        return None


def notes_about(key: str, words: list[str]) -> str:
    """The notes that name an option, on lines."""
    return "\n".join(n for n in run_of(words)[2] if key in n.partition(": ")[0].split(", "))


@pytest.mark.parametrize(("given", "outcome"), ROWS)
def test_an_option_arrives_is_noted_or_is_refused(given, outcome):
    words = given.split(" ")
    kind, _, text = outcome.partition(": ")
    if kind == "error":
        with pytest.raises(ConfigError, match=text):
            run_of(words)
    elif kind == "note":
        assert text in notes_about(words[0].partition("=")[0], words)
    else:
        place, _, text = outcome.partition("=")
        wanted = parse_yaml(text, "the table")
        assert value_at(place, words) == wanted
        # Otherwise the value would be that of the base, or of the further options.
        assert value_without(place, words) != wanted


def test_the_table_has_every_option_of_the_reference():
    of_engine = {key for key in OPTIONS if key.startswith("sglang.")}
    of_reference = {key for key in OPTIONS if key.startswith("ref.")}
    assert not set(OPTIONS) - NAMED - of_engine - of_reference
    assert (len(OPTIONS), len(of_engine), len(of_reference)) == (251, 47, 59)


@pytest.mark.parametrize("key", sorted(set(OPTIONS) - NAMED))
def test_an_option_of_the_engine_is_its_argument_and_of_ref_is_noted(key):
    section, _, name = key.partition(".")
    if section == "ref":
        assert notes_about(key, [f"{key}=x", "ref.path=r"])
        return
    flag = "--" + name.replace("_", "-")
    assert value_at("inference.args", [f"{key}=true"]) == [flag]
    assert value_at("inference.args", [f"{key}=17"]) == [flag, "17"]


@pytest.mark.parametrize("place", ["actor", "model"])
def test_options_of_the_model_have_their_effect_in_sft_too(place):
    options_of_sft = {"dtype": "float32", "optimizer.lr": 0.5, "mb_spec.max_tokens_per_mb": 99}
    words = [f"{place}.{name}={value}" for name, value in options_of_sft.items()]
    _, cfg, _ = run_of([*words, "train_dataset.type=sft"])
    assert (cfg.loss, cfg.dtype, cfg.lr) == ("cross_entropy", "float32", 0.5)
    assert cfg.max_tokens_per_microbatch == 99
