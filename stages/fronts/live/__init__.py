"""The live page: what the system does at present, followed from its topics."""
