"""What no schedule can beat: the problem of a placement, and lower bounds on its step."""
