"""From a training graph and a request to the rewritten model: its forms, the plan of each, and the passes."""
