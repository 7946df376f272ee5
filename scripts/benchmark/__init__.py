"""The scheduling benchmark: frozen cases, methods in processes of their own, and one judge for all their plans."""
