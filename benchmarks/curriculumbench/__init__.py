"""Parts of the study of samplers: task sets, and a policy in this process."""
