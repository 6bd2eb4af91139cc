"""Training files from environments: atropos-sft-gen and atropos-dpo-gen."""
