"""What people and programs read about a model and its plan."""
