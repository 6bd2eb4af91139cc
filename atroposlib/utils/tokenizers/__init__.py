"""Tokenizer loading, and tokenizers with chat templates made for training."""
