"""Parts of `atropos env try`: what agents said, stored replies played again, a watched file."""
