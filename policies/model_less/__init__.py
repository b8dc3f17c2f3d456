"""Selection by goals: which instance answers a query that names no variant (INFaaS, ATC 2021)."""
