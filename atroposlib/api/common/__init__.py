"""What every stage of the rollout API shares: records, the store protocol, thread pools."""
