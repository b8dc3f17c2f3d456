"""Which variant to run for each batch: the exact Markov decision process of a worker, solved in a tenth of a second."""
