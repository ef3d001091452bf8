"""Ways to the servers that several stages use: Redis in every topology, Kafka's client options. Nothing else."""
