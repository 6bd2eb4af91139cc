"""Parts of `atropos env try`: turns of agents, stored replies under a new reward, runs at each change."""
