"""Where prices come from: clouds, the shipped catalogue, the operator."""
