"""Readers: one small module per public format. Documents and labelled questions in, `Dataset` out.

Ids stay text exactly as written, labels are never guessed, nothing is skipped silently, and every error names
the file, the line, the field, what was found and what was expected.
"""
