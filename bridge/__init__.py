"""Trained carriers, ours or those of a checkpoint, fed into the theory: predicted against observed."""
