"""What the project writes to files and reads again, strictly: plans, simulations, profiles and
traces.
"""
