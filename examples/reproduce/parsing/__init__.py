"""Constituency parsing as translation (section 6.3): trees, their linear form, search, scores and yardsticks."""
