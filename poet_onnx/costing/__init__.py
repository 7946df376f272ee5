"""What nodes and transfers cost: device profiles, counted work, kernels' workspace, measured costs, the process."""
