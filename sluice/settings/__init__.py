"""Settings: one YAML file and the environment, validated."""
