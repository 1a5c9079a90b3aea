"""A corpus of sentence pairs: read, checked, tokenised, and cut into batches."""
