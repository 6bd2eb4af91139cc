"""Small records of other trainers' dumps, written for these tests after the formats' definitions."""

from __future__ import annotations

VERL = {
    "input": "user\n2+2?\nassistant\n",
    "output": "4",
    "gts": "4",
    "score": 1.0,
    "step": 7,
    "acc": True,
    "format": 0.5,
    "comment": "fine",
}
SLIME = {
    "group_index": 3,
    "index": 24,
    "prompt": "2+2?",
    "response": "4",
    "tokens": [5, 6, 7, 8],
    "response_length": 2,
    "loss_mask": [1, 0],
    "rollout_log_probs": [-0.5, -0.25],
    "weight_versions": ["2", "2"],
    "reward": 1.0,
    "status": "truncated",
    "label": "4",
}
TRACE = {
    "task": {"type": "Sums", "data": {"question": "2+2?"}, "key": "sum-4"},
    "nodes": [
        {"parent": None, "message": {"role": "user", "content": "2+2?"}, "token_ids": [5, 6],
         "mask": [False, False]},
        {"parent": 0, "message": {"role": "assistant", "content": "5"}, "sampled": True,
         "token_ids": [9], "mask": [True], "logprobs": [-2.0]},
        {"parent": 0, "message": {"role": "assistant", "content": "4"}, "sampled": True,
         "token_ids": [7, 8], "mask": [False, True], "logprobs": [-0.5], "advantages": [0.25]},
    ],
    "rewards": {"right": {"score": 1.0, "weight": 2.0}, "judge": None},
    "metrics": {"turns": 1.0},
    "stop_condition": "agent_completed",
}  # fmt: skip
ROLLOUT = {
    "example_id": 4,
    "task": "sums",
    "prompt": [{"role": "user", "content": "2+2?"}],
    "completion": [{"role": "assistant", "content": "4"}],
    "answer": "4",
    "reward": 1.0,
    "advantage": 0.5,
    "metrics": {"right": 1.0},
    "is_truncated": False,
    "stop_condition": "done",
    "trajectory": [
        {
            "tokens": {
                "prompt_ids": [5, 6],
                "completion_ids": [7, 8],
                "completion_logprobs": [-0.5, -0.25],
            }
        }
    ],
}
TRAINING_DATA = {
    "content": [["2+2?", "4"]],
    "rewards": [1.0],
    "token_ids": [[5, 6, 7, 0]],
    "token_loss_mask": [[0, 0, 1, 0]],
    "generation_logprobs": [[0.0, 0.0, -0.5, 0.0]],
    "advantages": [[0.0, 0.0, 0.75, 0.0]],
    "input_lengths": [3],
    "idx": 0,
}
GYM = {
    "responses_create_params": {"input": [{"role": "user", "content": "2+2?"}]},
    "response": {
        "status": "completed",
        "output": [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "add"}]},
            {"type": "function_call", "call_id": "c", "name": "add", "arguments": '{"a": 2}'},
            {"type": "function_call_output", "call_id": "c", "output": "4"},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "4"}],
            },
        ],
    },
    "reward": 1.0,
    "_ng_task_index": 2,
}
ATIF = {
    "schema_version": "ATIF-v1.4",
    "session_id": "s-1",
    "agent": {"name": "coder", "version": "2", "model_name": "small"},
    "steps": [
        {"step_id": 1, "source": "user", "message": "list the files"},
        {
            "step_id": 2,
            "source": "agent",
            "message": "",
            "reasoning_content": "ls",
            "tool_calls": [
                {"tool_call_id": "t", "function_name": "shell", "arguments": {"cmd": "ls"}}
            ],
            "observation": {"results": [{"source_call_id": "t", "content": "a.txt"}]},
            "metrics": {
                "prompt_token_ids": [5, 6],
                "completion_token_ids": [7],
                "logprobs": [-0.5],
            },
        },
    ],
    "final_metrics": {"total_steps": 2},
}
