"""Choice of the inference server for each call, and failover to another."""
