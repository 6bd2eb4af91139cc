"""Journal of finished samples: durable before their group is whole and acknowledged."""
