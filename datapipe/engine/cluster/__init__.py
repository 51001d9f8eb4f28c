"""What an engine on a cluster needs and no scheduler gives: nodes that are fit, stages that travel. Knows no Ray."""
