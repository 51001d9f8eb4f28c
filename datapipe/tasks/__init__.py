"""What one worker does: one function for each kind of task, and `run_task`, which every engine calls."""
