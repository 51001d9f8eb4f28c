"""Stages that remove what should not be learnt."""
