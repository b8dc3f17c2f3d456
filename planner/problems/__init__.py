"""What a planner is asked and what it answers: the problem, its checks, throughput, explanations."""
