"""Single nodes in place of what an exporter writes as many, each with a gradient of its own."""
