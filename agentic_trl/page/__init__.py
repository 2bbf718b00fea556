"""One page of HTML that shows runs: their figures over steps, their groups, their episodes turn by turn."""
