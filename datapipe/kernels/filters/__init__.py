"""What the quality filters measure."""
