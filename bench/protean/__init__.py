"""The figures of PROTEAN on our models."""
