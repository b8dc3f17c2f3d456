"""What every stage runs on: reading, sending, committing, timers, supervision."""
