"""Running a plan: finding inputs, the driver, the local and the Ray engine, and publishing what came out."""
