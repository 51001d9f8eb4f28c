"""Stages that remove personal data and secrets from the text of documents."""
