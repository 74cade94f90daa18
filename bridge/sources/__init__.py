"""Readers: each turns a kind of file into heads that the theory can take."""
