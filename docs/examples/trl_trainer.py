"""TRL's GRPOTrainer on the batches of a rollout API.

    python docs/examples/trl_trainer.py MODEL_DIR OUT http://127.0.0.1:8000 http://127.0.0.1:9001

The URLs are those of the API and of an inference server of the same model. With the directory of
a checkpoint as fifth word it goes on from there.
"""

import sys

import torch
from trl import GRPOConfig

from example_trainer.exchange.trl import QueueTrainer

model, out, api, server, *checkpoint = sys.argv[1:]
args = GRPOConfig(
    output_dir=out,
    max_steps=40,
    per_device_train_batch_size=32,  # 4 groups: a batch of the rollout API
    num_generations=8,  # group_size of the environments
    temperature=1.0,  # of the environments
    gradient_accumulation_steps=1,
    learning_rate=1e-5,
    loss_type="dapo",  # losses, clipping, KL, optimizer and trackers are TRL's
    epsilon_high=0.28,
    save_steps=10,
    report_to="none",
    use_cpu=not torch.cuda.is_available(),
    bf16=torch.cuda.is_available(),
)
settings = {
    "atropos_url": api,
    "inference_urls": [server],  # directory:// for those that announce themselves
    "seq_len": 1024,
    "max_staleness": 4,
}
QueueTrainer(model, args, settings=settings).train(*checkpoint)
