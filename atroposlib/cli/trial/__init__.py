"""Parts of `atropos env try`: the turns of agents, stored replies under a changed reward, runs at each change."""
