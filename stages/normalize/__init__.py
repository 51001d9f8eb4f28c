"""Stages that rewrite text without judging it."""
