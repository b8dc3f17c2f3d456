"""The aggregated allocation program and its pipeline: prune, LP chain, round up, polish, keep the assignment."""
