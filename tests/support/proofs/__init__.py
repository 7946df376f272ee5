"""Proofs about the scheduler on random graphs: a few run every time, the rest with `--deep`.

equality: energy and bound are those of exhaustive search within the class; how much cheaper a plan outside it can be.
validity: every plan, and every plan offered on the way to it, passes the simulator and keeps budget and deadline.
admitted: what the rows of the model admit, walks from one assignment to another, the simulator accepts.
rows: no row of the model, those of time included, leaves out a plan that keeps the budget and the deadline.
timed: exhaustive search over plans with the places of their transfers finds none that a bound or a proof denies.
monotone: over grids of budgets and deadlines, more of either never costs more.
"""
