"""datapipe: a streaming pretraining-data pipeline. Start at `README.md` beside this file.

This module imports nothing, so that a worker or a trainer never pays for parts it does not use.
"""
