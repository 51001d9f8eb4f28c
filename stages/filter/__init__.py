"""Stages that keep or drop each document by itself."""
