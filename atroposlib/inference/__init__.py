"""A small inference server over transformers: exact logprobs, in-place weight updates.

    HTTP routes -> Engine (one thread owns the model) -> scheduler -> model forward
                                                      -> sampling -> finished sequences

Nothing here is imported by environments or the rollout API: they speak HTTP.
"""
