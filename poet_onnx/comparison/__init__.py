"""Every method on one training graph, with every budget, deadline and device: one sweep, its table and its pictures."""
