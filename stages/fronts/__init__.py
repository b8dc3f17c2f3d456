"""Endpoints for people and programs: the HTTP front and the live page."""
