"""From a training graph and a request to the rewritten model: the variants of the graph, and the best plan of all."""
