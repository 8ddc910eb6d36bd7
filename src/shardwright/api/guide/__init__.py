"""The design guide: rules of thumb with the user's numbers, judged by searched plans."""
