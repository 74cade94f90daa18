"""Holds what the theory predicts of a head against what the head does: the only package that sees both."""
