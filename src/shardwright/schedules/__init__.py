"""Pipeline schedules, one file for each: the order in which every rank runs its actions."""
