"""Measuring a mixture: what each piece of work costs on one core, on a sample of the user's data."""
