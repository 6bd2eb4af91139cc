"""Local inference server over transformers: exact logprobs, in-place weight updates.

    HTTP routes -> Engine (a thread owns the model) -> scheduler -> model forward
                                                      -> sampling -> finished sequences

Environments and the rollout API import nothing from here; they send HTTP requests.
"""
