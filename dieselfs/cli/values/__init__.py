"""Values as people write them: sizes, durations, percentages."""
