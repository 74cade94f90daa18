"""The side that trains and observes. It knows no theorem."""
