"""Proofs about the scheduler on random graphs: what `scheduling_proofs.py` runs at length and the tests in short."""
