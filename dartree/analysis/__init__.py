"""What notebooks measure: gaps, calibration, replays and costs, from records and blocks."""
