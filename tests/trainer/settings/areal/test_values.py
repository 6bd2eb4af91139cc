"""AReaL's options and their values as settings of the trainer."""

from __future__ import annotations

import pytest

from tests.trainer.settings.conftest import given

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
    "actor.behave_imp_weight_cap=5 actor.behave_imp_weight_mode=sequence_truncate": {
        "importance_weight": "truncate",
        "importance_cap": 5,
        "importance_level": "sequence",
    },
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
    "actor.recompute_logprob=true actor.use_decoupled_loss=false": {
        "loss": "ppo",
        "importance_weight": "none",
    },
    "actor.behav_imp_weight_cap=5 actor.recompute_logprob=true actor.use_decoupled_loss=false": {
        "loss": "ppo",
        "importance_weight": "none",
        "importance_cap": 5,
    },
    "actor.recompute_logprob=false": {"loss": "grpo", "ratio_to": "sampler"},
    "actor.use_decoupled_loss=true actor.m2_threshold=0.05": {
        "loss": "m2po",
        "m2_threshold": 0.05,
    },
    "actor.importance_sampling_level=sequence": {"loss": "gspo", "ratio_to": "sampler"},
    "actor.importance_sampling_level=sequence actor.use_decoupled_loss=true": {"loss": "gspo"},
    "actor.use_sapo_loss=true actor.sapo_tau_neg=1.1": {
        "loss": "sapo",
        "ratio_to": "sampler",
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
    "actor.reward_norm.mean_level=group actor.reward_norm.std_level=none"
    " actor.reward_norm.mean_leave1out=true": {"advantage": "rloo"},
    "actor.reward_norm.mean_level=group": {"advantage": "lite_ppo"},
    "actor.reward_norm.std_level=batch": {"advantage": "reinforce_pp"},
    "actor.adv_norm.mean_level=batch": {"advantage_norm": "batch"},
    "actor.adv_norm.mean_level=group actor.adv_norm.std_level=group": {
        "advantage_norm": "group"
    },
    "actor.disable_dropout=true": {},
    "actor.disable_dropout=false": {},
    "actor.reward_norm=null critic.path=m critic.eps_clip=0.5": {
        "critic": True,
        "critic_model": "m",
        "advantage": "gae",
        "critic_clip_eps": 0.5,
    },
    "actor.experiment_name=a actor.trial_name=b saver.trial_name=c": {"run_name": "a_b"},
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
def test_areal_s_options_become_settings_of_the_trainer(words):
    assert given(*words.split()) == AREAL[words]
