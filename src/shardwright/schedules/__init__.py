"""Pipeline schedules, one file for each: the order in which ranks run their actions."""
