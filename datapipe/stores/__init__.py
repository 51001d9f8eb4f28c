"""Stores of files with rules of their own.

http.py   files of web servers, by byte ranges
hub.py    the Hugging Face Hub: revisions as commits
s3.py     S3 by URL: limits on waiting, access without credentials
"""
