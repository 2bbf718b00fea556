"""Several processes: supported kinds of parallelism, sharded parameters, sums over ranks."""
