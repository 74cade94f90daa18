"""Speed as ratios within one run: machines differ and are shared, ratios hardly do."""
