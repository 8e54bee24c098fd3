"""What runs a study: its design, its trainings and their tuning, its workers, its folder."""
