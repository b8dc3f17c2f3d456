"""Thin IO shells, one process role a file: records become events, actions become records; nothing is decided here."""
